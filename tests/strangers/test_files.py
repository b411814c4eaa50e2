"""The one door to the disk: what it refuses, and that there is no other."""

import os
import re
import stat
from pathlib import Path

import pytest

from fedetf.files import (
    MIB,
    MOST_VALUES,
    UnfitFile,
    append,
    is_file,
    make_folder,
    matching,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    real_folder,
    remove,
    write_whole,
)

SOURCE = Path(__file__).parents[2] / "src/fedetf"
# Ways past the door, and the few that there are for a reason.
OTHER_WAYS = re.compile(
    r"(?<![\w.])open\(|os\.open\(|\.open\(|\.unlink\(|\.(read|write)_(text|bytes)\(|\.mkdir\(|\.touch\("
    r"|\.rmdir\(|\.symlink_to\(|\.chmod\(|os\.(remove|rename|replace|truncate)\(|rmtree|shutil\.(copy|move)\w*"
    r"|ParquetFile\(|read_table\(|read_(csv|parquet|feather)\(|wavfile\.read\(|(np|numpy|torch)\.load\("
    r"|load_file\(|safe_open\(|memmap\(|mmap\.mmap\("
)
ALLOWED = {
    ("cli/__init__.py", "os.open("),  # /dev/null in the place of a standard output that is full
    ("data/decode.py", ".open("),  # Pillow, of bytes that came through the door
    ("data/kinds/sound.py", "wavfile.read("),  # likewise
    ("data/frames.py", "ParquetFile("),  # of what was looked at by files.checked
    ("core/state.py", "load_file("),  # likewise
    ("core/state.py", "safe_open("),
    ("engines/pages.py", "safe_open("),  # of a file that is checked first
    ("data/frames.py", "read_csv("),  # functions of this name that are our own
    ("data/frames.py", "read_parquet("),
    ("data/sources.py", "read_csv("),
    ("data/sources.py", "read_parquet("),
    ("models/card.py", "read_csv("),  # a line of a model card
    ("engines/memory.py", "mmap.mmap("),  # memory that workers share, without a name
    ("engines/private.py", "rmtree"),  # of a temporary folder that the engine made for itself
}


def test_there_is_no_other_door() -> None:
    found = {
        (str(path.relative_to(SOURCE)), match.group())
        for path in SOURCE.rglob("*.py")
        for match in OTHER_WAYS.finditer(path.read_text("utf-8"))
        if path.name != "files.py"
    }
    assert found == ALLOWED


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    path = tmp_path / "victim/keep"
    path.write_text("mine")
    return path


def test_only_regular_files_of_bounded_size_are_read(tmp_path: Path, victim: Path) -> None:
    link, fifo, large = (tmp_path / name for name in ("link", "fifo", "large"))
    link.symlink_to(victim)
    os.mkfifo(fifo)
    with large.open("wb") as file:
        file.truncate(2 * MIB)
    for path, why in ((link, "is a link"), (fifo, "not a regular file"), (tmp_path, "not a regular file")):
        with pytest.raises(UnfitFile, match=why):
            read_bytes(path, MIB)
    with pytest.raises(UnfitFile, match="has 2 MiB; a file of its kind has at most 1"):
        read_bytes(large, MIB)
    assert read_bytes(link, MIB, links=True) == b"mine"  # a user's own
    with pytest.raises(UnfitFile, match="not a regular file"):
        read_bytes(Path("/dev/zero"), MIB, links=True)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing", MIB)


def test_what_is_read_is_text_json_or_toml(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, read, why in (
        (b"\xff\xfe", read_text, "not text in UTF-8"),
        (b"[" * 100_000, read_json, "nested too deep"),
        (b'{"a": ', read_json, "is not JSON"),
        (b"9" * 5000, read_json, "is not JSON"),
        (b"a = " + b"[" * 5000, read_toml, "nested too deep"),
        (b"a = ", read_toml, "not valid TOML"),
        (b"a" + b".a" * 40 + b" = 1", read_toml, "nested too deep"),
        (b"x = {'a b'" + b' . "a b"' * 40 + b" = 1}", read_toml, "nested too deep"),
    ):
        path.write_bytes(content)
        with pytest.raises(UnfitFile, match=why):
            read(path)


def test_json_of_too_many_parts_is_not_taken_apart(tmp_path: Path) -> None:
    """Of 100 MB of "{}" Python would make 2.4 GB."""
    path = tmp_path / "file"
    path.write_text("[" + "{}," * MOST_VALUES)
    with pytest.raises(UnfitFile, match="more than 33,554,432 values"):
        read_json(path)


def test_a_temporary_file_is_a_new_one(tmp_path: Path, victim: Path) -> None:
    for planted in (victim, tmp_path / "nowhere"):
        (tmp_path / "rounds.jsonl.part").symlink_to(planted)
        write_whole(tmp_path / "rounds.jsonl", b"ours")
        assert (tmp_path / "rounds.jsonl").read_text() == "ours"
    (tmp_path / "model").symlink_to(victim)
    with pytest.warns(UserWarning, match="model was a link"):
        write_whole(tmp_path / "model", b"ours")  # the link itself is replaced
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "rounds.jsonl", "victim"]


def test_nothing_is_added_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "log").symlink_to(victim)
    with pytest.raises(UnfitFile, match="not a regular file"):
        append(tmp_path / "log", b"more")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UnfitFile, match="not a regular file"):
        append(tmp_path / "fifo", b"more")
    append(tmp_path / "new", b"a\n")
    append(tmp_path / "new", b"b\n")
    assert (tmp_path / "new").read_text() == "a\nb\n"
    assert victim.read_text() == "mine"


def test_only_regular_files_of_the_right_name_are_removed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "1-00001.safetensors").symlink_to(victim)
    (tmp_path / "2-00001.safetensors").mkdir()
    (tmp_path / "3-00001.safetensors").write_text("")
    (tmp_path / "notes.txt").write_text("")
    found = matching(tmp_path, re.compile(r"\d-\d{5}\.safetensors"))
    assert [path.name for path in found] == ["3-00001.safetensors"]
    for path in tmp_path.iterdir():
        remove(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-00001.safetensors", "2-00001.safetensors", "victim"]
    assert matching(tmp_path / "nothing", re.compile(".*")) == []


def test_a_folder_that_is_a_link_is_none(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "clients").symlink_to(victim.parent)
    with pytest.raises(UnfitFile, match="is a link; a run folder holds no links"):
        real_folder(tmp_path / "clients")
    assert real_folder(tmp_path / "new") == tmp_path / "new"
    assert not is_file(tmp_path / "clients")


def test_private_files_are_private_from_the_first_moment(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_whole(tmp_path / "config.toml", b"", private=True)
        write_whole(tmp_path / "page.html", b"")
        make_folder(tmp_path / "keep", private=True)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"config.toml": 0o600, "page.html": 0o666, "keep": 0o700}


def test_an_error_of_the_system_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        write_whole(tmp_path / "folder", b"")
    assert str(tmp_path / "folder") in str(caught.value)
    assert not (tmp_path / "folder.part").exists()
