"""Which fedetf made a result: the commit of the checkout that it runs from."""

import subprocess
from functools import cache
from pathlib import Path


@cache
def commit() -> str | None:
    """The commit of this code, with ``-dirty`` behind it if files differ from it; None outside a checkout.

    A package that is installed below some other project's checkout is not part of that project, so git is asked
    whether it tracks this very file.
    """
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None where there is no git, or it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
