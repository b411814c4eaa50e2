"""A new app folder: all that `flwr run` needs, and what server and sites read to get started."""

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedetf.errors import UserError
from fedetf.files import make_folder, packaged, remove, write_whole

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,39}")  # what Flower takes as the name of an app


def are_names(sites: Sequence[str]) -> bool:
    """Whether these are different names that can be part of a path and of Flower's settings."""
    return bool(sites) and len(set(sites)) == len(sites) and all(NAME.fullmatch(site) for site in sites)


def new_app(folder: Path, sites: Sequence[str]) -> list[Path]:
    """Write the files of an app for these sites into a new folder; returns their paths."""
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot be the name of an app; use letters, digits and hyphens, a letter first")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists already and is not overwritten; give another folder")
    if not are_names(sites):
        raise UserError(f"--sites takes different names of letters, digits and hyphens, not {', '.join(sites)!r}")
    make_folder(folder)
    values = {"@APP@": name, "@SITES@": ", ".join(sites), "@SITE@": sites[0], "@NAMES@": " ".join(sites)}
    values |= {"@MIN@": str(max(1, len(sites) - 1))}
    paths: list[Path] = []
    for source in sorted(resources.files("fedetf").joinpath("flower/template").iterdir(), key=lambda file: file.name):
        text = packaged("flower", "template", source.name)
        for mark, value in values.items():
            text = text.replace(mark, value)
        path = folder / source.name.removesuffix(".in")
        try:
            write_whole(path, text.encode())
        except OSError:  # a full disk: half an app is none, and would stand in the way of the next attempt
            for written in paths:
                remove(written)
            raise
        paths.append(path)
    return paths
