"""The one door to the disk: every file that fedetf reads, writes or removes goes through here.

A run folder or a model file may come from a stranger. So inside a run folder no link is followed, only regular files
are read, and no more of them than a file of their kind can hold; temporary files are new ones; and nothing is removed
but regular files. Whatever the system refuses comes out as an OSError that names the path.
"""

import errno
import hashlib
import json
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, Any

from fedetf.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same, before it moved here
    import tomli as tomllib

# What the system says of a name that no file can have, and of a place where this user can put none: give another. All
# else (a full disk, a failing one, too many open files) has nothing to do with what was asked for.
BAD_NAMES = {errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP}
_WRONG_PLACE = {*BAD_NAMES, errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS}
_ELSEWHERE = "take a folder that you can write to"
MIB = 2**20
# The most that a file of a kind may hold: settings and notes; JSON about rounds and clients; tensors; a picture; CSV.
NOTE, RECORD, TENSORS, PICTURE, TABLE = 4 * MIB, 512 * MIB, 64 * 1024 * MIB, 1024 * MIB, 16 * 1024 * MIB
MOST_VALUES = 2**25  # in one JSON text: each costs up to a hundred bytes, whatever its length in the file
# Thirty-two dotted parts: settings have three, and more cost the parser time by the square of their number.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)[ \t]*\.[ \t]*){32}""")


class UnfitFile(UserError):  # noqa: N818  # it is the file that is unfit, not the caller that erred
    """A file that is not what it should be: a link, a device, too large, or damaged."""


# --- reading ----------------------------------------------------------------------------------------------------------


def checked(path: Path, most: int, links: bool = False) -> Path:
    """``path``, if it is a regular file within the size limit; for libraries that open files themselves."""
    with _opened(path, most, links):
        return path


def read_bytes(path: Path, most: int, links: bool = False) -> bytes:
    """The content of a regular file of at most ``most`` bytes; ``links``: it may be behind one, as a user's own may."""
    with _opened(path, most, links) as file, naming(path):
        size = os.fstat(file.fileno()).st_size + MIB  # asked for no more than there is: memory is taken for it
        return file.read(min(most, size))


def digest(path: Path, most: int) -> bytes:
    """A hash of a file's content, 32 bytes; the file may be behind a link."""
    hasher = hashlib.blake2b(digest_size=32)
    with _opened(path, most, links=True) as file, naming(path):
        while piece := file.read(MIB):
            hasher.update(piece)
    return hasher.digest()


def read_text(path: Path, most: int = NOTE, links: bool = False) -> str:
    """The same as text, which is UTF-8."""
    try:
        return read_bytes(path, most, links).decode("utf-8")
    except UnicodeDecodeError:
        raise UnfitFile(f"{path} is not text in UTF-8") from None


def read_json(path: Path, most: int = RECORD) -> Any:
    """The same as JSON."""
    return parse_json(read_text(path, most), str(path))


def parse_json(text: str, where: str) -> Any:
    """JSON from anybody: what is malformed, nested without end, or of too many parts, is one line."""
    if sum(map(text.count, "[{,")) > MOST_VALUES:
        raise UnfitFile(f"{where} is damaged: it has more than {MOST_VALUES:,} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnfitFile(f"{where} is damaged: it is not JSON ({_brief(error)})") from None


def read_toml(path: Path, links: bool = False) -> dict[str, Any]:
    """The same as TOML."""
    text = read_text(path, NOTE, links)
    if _DEEP_KEY.search(text):
        raise UnfitFile(f"{path} is not valid TOML: nested too deep")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnfitFile(f"{path} is not valid TOML: {_brief(error)}") from None


def packaged(*names: str) -> str:
    """A text that ships with the package, by its folders and its name."""
    return resources.files("fedetf").joinpath(*names).read_text("utf-8")


def is_file(path: Path) -> bool:
    """Whether there is a regular file of that name, and no link to one."""
    with naming(path):
        try:
            return stat.S_ISREG(path.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False


def stamp(path: Path) -> tuple[int, int] | None:
    """When a file was last written, in nanoseconds, and its size; None if there is none. Other content, other stamp."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size


def matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The regular files in a folder whose names match as a whole, by name; none if there is no such folder."""
    if not folder.is_dir():
        return []
    with naming(folder):
        return sorted(path for path in real_folder(folder).iterdir() if pattern.fullmatch(path.name) and is_file(path))


def below(folder: Path) -> Iterator[Path]:
    """All that is in a folder and below it, however deep, each folder's content by name; links are not followed."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        if path != folder:
            yield path
        if path == folder or (path.is_dir() and not path.is_symlink()):
            waiting += sorted(path.iterdir(), reverse=True)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_whole(path: Path, content: bytes, sync: bool = True, private: bool = False) -> None:
    """Write a file under a temporary name, sync it and rename it: a crash never leaves half of it.

    Without ``sync`` that holds for a crash of the program, not of the machine. ``private``: for the owner's eyes only,
    from the first moment.
    """
    temporary = path.with_name(path.name + ".part")
    with naming(path):
        temporary.unlink(missing_ok=True)  # what a crash left, or a link that somebody put there
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOEXEC, 0o600 if private else 0o666)
        try:
            with os.fdopen(new, "wb") as file:
                file.write(content)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            if path.is_symlink():
                warnings.warn(f"{path} was a link; a new file takes its place, and what it led to stays", stacklevel=2)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)  # a full disk is not made fuller
            raise
        if sync:
            _sync_folder(path.parent)


def append(path: Path, content: bytes) -> None:
    """Add bytes at the end of a regular file, or to a new one."""
    with naming(path):
        if path.is_symlink() or path.exists():
            _check_regular(path, path.lstat(), most=sys.maxsize)
        end = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NOFOLLOW | _CLOEXEC, 0o666)
        with os.fdopen(end, "ab") as file:
            file.write(content)


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with naming(path), path.open("rb") as file:
        os.fsync(file.fileno())


def move(path: Path, to: Path) -> None:
    """Give a file another name, in one step; what had that name is gone."""
    with naming(to):
        path.replace(to)


def make_folder(path: Path, private: bool = False) -> None:
    """Make a folder and those above it; ``private``: for the owner's eyes only."""
    try:
        path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _WRONG_PLACE:
            raise
        if error.errno not in BAD_NAMES:
            check_folder(path)  # in better words
        raise UserError(f"cannot write to {path}: {error.strerror}; {_ELSEWHERE}") from None
    check_folder(path)


def check_folder(path: Path) -> None:
    """Refuse a folder that could not be made, or not be written to; nothing is made yet."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise UserError(f"cannot write to {path}: {there} is not a folder; {_ELSEWHERE}")
    if not is_writable(there):
        read_only = hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY
        why = "its disk is read-only" if read_only else f"no permission in {there}"
        raise UserError(f"cannot write to {path}: {why}; {_ELSEWHERE}")


def is_writable(folder: Path) -> bool:
    """Whether this user can put files into a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def remove(path: Path) -> None:
    """Remove a regular file, if it is there; anything else of that name stays."""
    if is_file(path):
        with naming(path):
            path.unlink(missing_ok=True)


def user_cache() -> Path:
    """Where this user's programs keep what they could make again."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedetf"


def mark_used(path: Path) -> None:
    """Note that a file was used just now, for :func:`used_last`."""
    with naming(path):
        os.utime(path)


def used_last(path: Path) -> float:
    """When a file was written or marked; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def real_folder(path: Path) -> Path:
    """``path``, unless it is a link: a folder inside a run folder is a folder, or not there yet."""
    if path.is_symlink():
        raise UnfitFile(f"{path} is a link; a run folder holds no links, so remove it")
    return path


# --- how --------------------------------------------------------------------------------------------------------------

# Not every system has all of these.
_NOFOLLOW, _NONBLOCK, _CLOEXEC = (getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))


@contextmanager
def _opened(path: Path, most: int, links: bool) -> Iterator[IO[bytes]]:
    """A regular file of bounded size; a FIFO does not make the reader wait."""
    if not links and path.is_symlink():
        raise UnfitFile(f"{path} is a link; links are not followed here, so put the file itself there")
    with naming(path):
        _check_regular(path, path.stat(), most)  # a device may do something when it is opened
        descriptor = os.open(path, os.O_RDONLY | (0 if links else _NOFOLLOW) | _NONBLOCK | _CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _check_regular(path: Path, status: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnfitFile(f"{path} is not a regular file; put one there, or remove it")
    if status.st_size > most:
        raise UnfitFile(f"{path} has {status.st_size / MIB:,.0f} MiB; a file of its kind has at most {most // MIB:,}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name the path, which a failed write or read does not by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:  # else its own words would be lost
            error.filename = str(path)
        raise


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can tell."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)


def _brief(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error).split("\n")[0]
