"""What strangers do to files and folders that they hand on, and somebody beside them who must not notice."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w
import tomllib
import torch
from fuzz import mutated
from hypothesis import strategies as st

from fedetf.core.state import load_checked, save_state
from fedetf.files import UnfitFile

SECRET = "words-of-the-victim"
LINKS = ("file", "folder", "fifo", "zero", "nowhere")


def damage(draw: st.DrawFn, path: Path, victim: Path) -> None:
    """Do something to a file."""
    kind = draw(st.sampled_from(["content", "content", "content", "cut", "bytes", "link", "folder", "gone"]))
    content = path.read_bytes()
    if kind == "content" and not rewritten(draw, path):
        kind = "bytes"
    if kind == "cut":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    elif kind == "bytes":
        place = draw(st.integers(0, max(0, len(content) - 1)))
        path.write_bytes(content[:place] + draw(st.binary(min_size=1, max_size=9)) + content[place + 1 :])
    elif kind != "content":
        path.unlink()
        if kind == "folder":
            path.mkdir()
        if kind == "link":
            plant(draw(st.sampled_from(LINKS)), path, victim)


def rewritten(draw: st.DrawFn, path: Path) -> bool:
    """Change what a file says; False if an earlier damage left nothing that could be read."""
    try:
        REWRITERS.get(path.suffix, rewrite_text)(draw, path)
    except (UnfitFile, json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def plant(what: str, path: Path, victim: Path) -> None:
    """Put a link, or something that is no file, in the place of a file."""
    if what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to({"file": victim / "keep", "folder": victim, "zero": "/dev/zero", "nowhere": "/no/such"}[what])


def rewrite_json(draw: st.DrawFn, path: Path) -> None:
    path.write_text(json.dumps(mutated(draw, json.loads(path.read_text()))), "utf-8", errors="surrogatepass")


def rewrite_lines(draw: st.DrawFn, path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = mutated(draw, lines)
    text = "\n".join(json.dumps(line) for line in (changed if isinstance(changed, list) else [changed]))
    path.write_text(text, "utf-8", errors="surrogatepass")


def rewrite_toml(draw: st.DrawFn, path: Path) -> None:
    tree = mutated(draw, tomllib.loads(path.read_text()))
    try:
        path.write_text(tomli_w.dumps(tree), "utf-8")
    except (TypeError, ValueError, AttributeError):  # TOML has no such thing
        path.write_text("[" * 3000)


def rewrite_tensors(draw: st.DrawFn, path: Path) -> None:
    """What a file says of itself, or its tensors, with a checksum that is right."""
    about, state = load_checked(path)
    if draw(st.booleans()):
        changed = mutated(draw, about)
        about = changed if isinstance(changed, dict) else {"it": changed}
        about.pop("check", None)
    else:
        name = draw(st.sampled_from(sorted(state)))
        state[name] = draw(st.sampled_from(ODD))(state[name])
    try:
        save_state(state, path, about)
    except (ValueError, TypeError, UnicodeEncodeError):  # what JSON cannot hold
        path.write_bytes(b"")


def rewrite_text(draw: st.DrawFn, path: Path) -> None:
    path.write_text(draw(st.text()), "utf-8", errors="replace")


ODD: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.double(),
    lambda t: t.flatten(),
    lambda t: t.new_zeros(3, 3),
    lambda t: torch.full_like(t.float(), float("nan")),
    lambda t: torch.zeros(0),
    lambda t: t.bool(),
]
REWRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".json": rewrite_json,
    ".jsonl": rewrite_lines,
    ".toml": rewrite_toml,
    ".safetensors": rewrite_tensors,
}


class Place:
    """A damaged copy, and a victim beside it."""

    def __init__(self, folder: str, originals: Path, name: str):
        self.victim, self.copy = Path(folder, "victim"), Path(folder, name)
        (self.victim / "below").mkdir(parents=True)
        (self.victim / "keep").write_text(f"{SECRET}\n")
        if (originals / name).is_dir():
            shutil.copytree(originals / name, self.copy, ignore=shutil.ignore_patterns("tensorboard"))
        else:
            shutil.copy(originals / name, self.copy)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
