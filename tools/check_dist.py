"""Try out what `make dist` has built, as somebody who installs it would: in an empty environment, outside the clone.

The metadata of wheel and sdist are checked, then the wheel alone is installed with every Python 3.10 or newer on PATH
or of pyenv, and `fedetf demo`, `run` and `report` run from it; on Linux as root without a network.

    python tools/check_dist.py dist                 # or with some Pythons only: dist python3.12 python3.13
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = (
    "fedetf demo --out demo",
    "fedetf run --clients 3 --rounds 1 --epochs 1 --set personal.rounds=1 --out first",
    "fedetf report demo first --out report.html",
)


def main(folder: Path, pythons: Sequence[str]) -> None:
    """Check everything; the first thing that is wrong ends it with a line."""
    (wheel,), (sdist,) = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    packed = wheel_files(wheel)
    for text in (packed["METADATA"], sdist_metadata(sdist)):
        Metadata.from_email(text, validate=True)
    version = email.message_from_bytes(packed["METADATA"])["Version"]
    written = re.search(r'__version__ = "(.+)"', (ROOT / "src/fedetf/__init__.py").read_text("utf-8"))
    if written is None or written[1] != version:
        sys.exit(f"error: the wheel says version {version}, src/fedetf/__init__.py another one")
    missing = sorted(set(tracked()) - set(packed))
    if missing:
        sys.exit(f"error: not in the wheel: {', '.join(missing)}; see package-data in pyproject.toml")
    for python in pythons or interpreters():
        try_out(python, wheel)


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """What is in a wheel, by path; the metadata as METADATA."""
    with zipfile.ZipFile(wheel) as packed:
        return {re.sub(r"^.*\.dist-info/(METADATA)$", r"\1", name): packed.read(name) for name in packed.namelist()}


def sdist_metadata(sdist: Path) -> bytes:
    """The metadata of a source distribution."""
    with tarfile.open(sdist) as packed:
        (name,) = [name for name in packed.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO")]
        content = packed.extractfile(name)
        assert content is not None
        return content.read()


def tracked() -> list[str]:
    """The files of the package that git knows, as a wheel names them."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name.removeprefix("src/") for name in listed.splitlines()]


def try_out(python: str, wheel: Path) -> None:
    """Install the wheel into an empty environment of this Python, and run it there."""
    with tempfile.TemporaryDirectory() as made:
        place, began = Path(made), time.monotonic()
        run([python, "-m", "venv", "env"], place)
        pinned = version_of(python) == sys.version_info[:2]  # constraints.txt is made for one of them only
        pins = ["-c", str(ROOT / "constraints.txt")] if pinned else []
        run(["env/bin/pip", "install", "--quiet", "--no-compile", *pins, str(wheel.resolve())], place)
        seconds, size = time.monotonic() - began, sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
        print(f"{python}: installed in {seconds:.0f} s, {size / 2**20:.0f} MiB", flush=True)
        for command in COMMANDS:
            run([*offline(), f"env/bin/{command.split()[0]}", *command.split()[1:]], place)
        if not (place / "report.html").is_file():
            sys.exit("error: fedetf report left no page")


def interpreters() -> list[str]:
    """One of each version from 3.10 on: from PATH, or else from pyenv, which puts only chosen ones there."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    names = [f"python3.{minor}" for minor in range(10, 20)]
    places = [*names, *(str(path) for name in names for path in pyenv.glob(f"versions/*/bin/{name}"))]
    found = {version: place for place in reversed(places) if (version := version_of(place))}
    return [found[version] for version in sorted(found)]


def version_of(python: str) -> tuple[int, ...] | None:
    """The version of an interpreter; None if it is not there, or a shim without one behind it."""
    if shutil.which(python) is None:
        return None
    words = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    answer = subprocess.run(words, check=False, capture_output=True, text=True)
    return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else None


def offline() -> list[str]:
    """What to put before a command so that it has no network; nothing where that cannot be had."""
    alone = ["unshare", "--net"]
    possible = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    return alone if possible else []


def run(words: Sequence[str], place: Path) -> None:
    """Run a command that must end well, without this clone's source on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=place, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, words))} ended with status {done.returncode}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
