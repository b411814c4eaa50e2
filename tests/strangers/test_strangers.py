"""A folder from a stranger, a full disk, a lost terminal: one line, and nothing outside the folder is touched."""

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from fuzz import call, untouched
from PIL import Image
from processes import Forked

import fedetf
from fedetf.core.state import load_checked, save_state
from fedetf.federation import Listener
from fedetf.files import write_whole
from fedetf.report.page import write_report

SETTINGS = {"data.limit": 60, "data.test_limit": 20, "personal.rounds": 1, "engine.name": "serial"}
OPTIONS = {"method": "ditto", "model": "mlp", "clients": 2, "rounds": 3, "epochs": 1, "settings": SETTINGS}
SECRET = "words-of-the-victim"


class StopAfterTwo(Listener):
    def round_done(self, record, server) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers") / "run"
    with pytest.raises(KeyboardInterrupt):
        fedetf.run(out=folder, listeners=[StopAfterTwo()], **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers") / "run"
    fedetf.run(out=folder, **OPTIONS)
    return folder


@pytest.fixture
def stopped(cut: Path, tmp_path: Path) -> Path:
    return shutil.copytree(cut, tmp_path / "run")


@pytest.fixture
def finished(done: Path, tmp_path: Path) -> Path:
    return shutil.copytree(done, tmp_path / "comparison/run")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "victim"
    (folder / "below").mkdir(parents=True)
    (folder / "keep").write_text(SECRET)
    (folder / "0-00001.safetensors").write_text(SECRET)  # of the very name that a run would remove
    with untouched(folder):
        yield folder


# --- 1, 3: links, devices, temporaries --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clients", "checkpoints", "personal", "tensorboard"])
def test_a_folder_of_a_run_that_leads_outside(stopped: Path, victim: Path, name: str) -> None:
    shutil.rmtree(stopped / name, ignore_errors=True)
    (stopped / name).symlink_to(victim)
    status, _, said = call("resume", str(stopped))
    assert status == 2
    assert f"{name} is a link" in said


def test_files_that_are_not_of_the_run_stay(stopped: Path) -> None:
    (stopped / "clients/notes.txt").write_text("mine")
    (stopped / "checkpoints/round-best.safetensors").write_text("mine")
    assert call("resume", str(stopped))[0] == 0
    assert (stopped / "clients/notes.txt").read_text() == "mine"
    assert (stopped / "checkpoints/round-best.safetensors").read_text() == "mine"


@pytest.mark.parametrize("name", ["rounds.jsonl.part", "partition.json.part", "result.json.part", "rounds.jsonl"])
def test_a_planted_link_is_not_written_through(stopped: Path, victim: Path, name: str) -> None:
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to(victim / "keep")
    assert call("resume", str(stopped))[0] == 0


@pytest.mark.parametrize("name", ["result.json", "model.safetensors"])
def test_a_link_in_place_of_a_result_is_named(finished: Path, tmp_path: Path, name: str) -> None:
    (finished / name).rename(tmp_path / name)
    (finished / name).symlink_to(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    status, _, said = call("export", str(finished), "--to", str(tmp_path / "m.safetensors"))
    assert status == 2
    assert f"{finished / name} is a link" in said
    status, _, said = call("resume", str(finished))
    assert status == 0
    assert f"warning: {finished / name} was a link; a new file takes its place" in said
    assert (tmp_path / name).read_bytes() == before


def test_a_place_below_a_file(finished: Path) -> None:
    file = finished / "result.json"
    for target in (file / "m.safetensors", file / "below/m.safetensors"):
        status, _, said = call("export", str(finished), "--to", str(target))
        assert status == 2
        assert f"cannot write to {target.parent}: {file} is not a folder; take a folder" in said


def links(victim: Path, path: Path) -> None:
    path.symlink_to(victim / "keep")


def fifo(victim: Path, path: Path) -> None:
    os.mkfifo(path)


def zeros(victim: Path, path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [links, fifo, zeros])
@pytest.mark.parametrize("name", ["command.txt", "run/error.part", "run/rounds.jsonl", "run/config.toml"])
def test_a_report_copies_nothing_from_outside(finished: Path, victim: Path, plant: Callable, name: str) -> None:
    path = finished.parent / name
    path.unlink(missing_ok=True)
    if "error" in name:
        (finished / "result.json").unlink()
    plant(victim, path)
    page = finished.parent / "page.html"
    call("report", str(finished.parent), "--out", str(page))
    assert not page.exists() or SECRET not in page.read_text("utf-8")


# --- 6: what is damaged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [None, [-1, 8, 8], [2**40, 8, 8], [1] * 9, "wide", [0], [2**25, 1, 1]])
def test_a_model_that_says_it_takes_something_else(finished: Path, tmp_path: Path, shape: object) -> None:
    about, state = load_checked(finished / "model.safetensors")
    save_state(state, finished / "model.safetensors", {**about, "shape": shape})
    status, _, said = call("export", str(finished), "--to", str(tmp_path / "out.safetensors"))
    assert status == 2
    assert "is damaged" in said
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"general": 3}', "null", "[" * 9999])
@pytest.mark.parametrize("name", ["result.json", "partition.json"])
def test_damaged_json(finished: Path, name: str, content: str) -> None:
    (finished / name).write_text(content)
    for line in (["predict", str(finished), "--client", "north", "x.png"], ["report", str(finished)]):
        status, _, said = call(*line)
        assert status == 2
        assert name in said


@pytest.mark.parametrize("name", ["result.json", "partition.json", "rounds.jsonl"])
def test_a_damaged_file_is_made_again_as_the_message_says(finished: Path, name: str) -> None:
    path = finished / name
    whole = path.read_text()
    path.write_text(whole + "x")
    refused = ["resume", str(finished)] if name == "partition.json" else ["report", str(finished)]
    status, _, said = call(*refused)
    assert status == 2
    assert f"{name} is damaged: it is not JSON" in said
    assert f"; to fix the run, remove it and call: fedetf resume {finished}" in said
    path.unlink()
    assert call("resume", str(finished))[0] == 0
    assert path.read_text().splitlines()[:4] == whole.splitlines()[:4]


def rewrite(folder: Path, change: Callable = torch.clone, more: dict | None = None) -> None:
    """Every file of tensors in a folder with other tensors or another note, and a checksum that is right."""
    for path in folder.iterdir():
        about, state = load_checked(path)
        save_state({name: change(tensor) for name, tensor in state.items()}, path, {**about, **(more or {})})


def test_a_size_beyond_64_bits(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [0, 0]}}).encode()
    model = tmp_path / "model.safetensors"
    model.write_bytes(len(header).to_bytes(8, "little") + header)
    status, _, said = call("predict", str(model), "picture.png")
    assert status == 2
    assert "is damaged" in said


@pytest.mark.parametrize("method", ["fedetf", "fedavg"])
def test_a_model_that_names_more_classes_than_it_has(finished: Path, tmp_path: Path, method: str) -> None:
    """An ETF of 60,000 classes would take 29 GB, and weeks to make."""
    model = exported(finished, tmp_path, classes=[str(c) for c in range(60_000)], method=method)
    status, _, said = call("predict", str(model), "picture.png")
    assert status == 2
    assert "no head for 60,000 classes" in said


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_names_that_a_terminal_would_obey(finished: Path, tmp_path: Path, form: str) -> None:
    """Escape sequences, markup of the library that draws tables, a name that is no text."""
    model = exported(finished, tmp_path, classes=["\x1b[2J[/x]:cat:\udcff\u202e"] * 10)
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    status, shown, _ = call("predict", str(model), str(tmp_path / "picture.png"), "--format", form)
    assert status == 0
    assert "[2J[/x]:cat:" in shown
    assert not any(c in shown for c in "\x1b\udcff\u202e")
    assert call("export", str(model), "--to", str(tmp_path / "again.safetensors"))[0] == 0


def exported(run: Path, folder: Path, classes: list[str], method: str = "ditto") -> Path:
    """An exported model that says other things of itself."""
    assert call("export", str(run), "--to", str(folder / "model.safetensors"))[0] == 0
    about, state = load_checked(folder / "model.safetensors")
    settings = {**about["settings"], "method": {"name": method}}
    save_state(state, folder / "other.safetensors", {**about, "classes": classes, "settings": settings})
    return folder / "other.safetensors"


def test_a_reason_or_a_folder_that_a_terminal_would_obey(finished: Path) -> None:
    other = finished.parent / "\x1b[31m"
    shutil.copytree(finished, other)
    (other / "result.json").unlink()
    (other / "error.part").write_text("Traceback\nboom \x1b[2J")
    status, shown, _ = call("report", str(finished.parent), "--out", str(finished.parent / "page.html"))
    assert status == 0
    assert "boom \\x1b[2J" in shown
    assert "\x1b" not in shown


def test_data_with_names_that_a_terminal_would_obey(tmp_path: Path) -> None:
    for split, name in itertools.product(("train", "test"), ("\x1b[31m", os.fsdecode(b"\xff"), "[x]")):
        folder = tmp_path / "da[" / "t]a" / split / name
        folder.mkdir(parents=True)
        for number in range(8):
            Image.new("L", (8, 8)).save(folder / f"{number}.png")
    data = ["--dataset", str(tmp_path / "da[" / "t]a"), "--clients", "2"]
    status, shown, _ = call("partition", *data, "--out", str(tmp_path / "out"))
    assert status == 0
    assert "\x1b" not in shown
    run = ["--model", "mlp", "--rounds", "1", "--epochs", "1", "--engine", "serial", "--out", str(tmp_path / "run")]
    assert call("run", *data, *run)[0] == 0


@pytest.mark.slow
def test_folders_deeper_than_the_stack(finished: Path, tmp_path: Path) -> None:
    path = deep = tmp_path / "deep"
    path.mkdir()
    try:
        for _ in range(1200):
            path = path / "a"
            path.mkdir()
        Image.new("L", (8, 8)).save(path / "picture.png")
        assert call("report", str(deep), "--out", str(tmp_path / "page.html"))[0] == 2
        assert call("report", str(deep), str(finished), "--out", str(tmp_path / "page.html"))[0] == 0
        assert call("predict", str(finished), str(deep))[0] == 0
    finally:  # pytest could not remove them either
        (path / "picture.png").unlink()
        for folder in [path, *path.parents][:1201]:
            folder.rmdir()


def test_a_key_of_thousands_of_parts(finished: Path, tmp_path: Path) -> None:
    """Python's parser takes it; whatever looks at the nested tables afterwards would run out of stack."""
    config = finished / "config.toml"
    config.write_text(f"a{'.a' * 5000} = 1\n" + config.read_text())
    status, _, said = call("report", str(finished), "--out", str(tmp_path / "page.html"))
    assert status == 2
    assert "nested too deep" in said
    assert call("run", str(config), "--out", str(tmp_path / "run"))[0] == 2


def test_a_picture_starts_no_program(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript, whatever its file is called, to Ghostscript."""
    picture, program, started = tmp_path / "picture.png", tmp_path / "bin/gs", tmp_path / "started"
    picture.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for anew
    status, _, said = call("predict", str(finished), str(picture))
    assert status == 2
    assert "not an image that Pillow knows" in said
    assert not started.exists()


# Each made Pillow raise something that is neither an OSError nor its own word for what it does not know.
DAMAGED = {
    "a PPM with a broken number": b"P6 1\x7f 16 255\n" + bytes(768),
    "a PNG with half a header": bytes.fromhex("89504e470d0a1a0a0000000449484452000000104b22f5f7"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_picture(finished: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "picture.png").write_bytes(DAMAGED[what])
    status, _, said = call("predict", str(finished), str(tmp_path / "picture.png"))
    assert status == 2
    assert "cannot read" in said


def test_a_checkpoint_with_other_types(stopped: Path) -> None:
    rewrite(stopped / "checkpoints", change=torch.Tensor.double)
    status, _, said = call("resume", str(stopped))
    assert status == 2
    assert "the checkpoint is of another run" in said


@pytest.mark.parametrize("key", ["clients", "records", "train_seconds"])
def test_a_checkpoint_whose_note_is_damaged(stopped: Path, key: str) -> None:
    rewrite(stopped / "checkpoints", more={key: ["nonsense"]})
    status, _, said = call("resume", str(stopped))
    assert status == 2
    assert "no checkpoint in" in said


def test_what_a_client_kept_is_of_another_shape(stopped: Path) -> None:
    rewrite(stopped / "clients", change=torch.Tensor.flatten)
    status, _, said = call("resume", str(stopped))
    assert status == 1
    assert "kept is not of this run" in said


# --- 6: what the system refuses ---------------------------------------------------------------------------------------


FLAGS = [
    "--method",
    "fedavg",
    "--model",
    "mlp",
    "--clients",
    "2",
    "--rounds",
    "40",
    "--epochs",
    "1",
    "--engine",
    "serial",
    "--set",
    "data.limit=60",
]


def wait_for_rounds(run: Path) -> None:
    """Wait until some rounds are done; checkpoints come and go."""
    end = time.monotonic() + 120
    while not (run / "rounds.jsonl").is_file() or (run / "rounds.jsonl").read_text("utf-8").count("\n") < 2:
        assert time.monotonic() < end
        time.sleep(0.05)


def one_error(process: Forked | subprocess.Popen) -> str:
    """What it said in the end, which is one line of an error."""
    said = process.communicate(timeout=300)[1]
    assert "Traceback" not in said
    assert sum(line.startswith("error:") for line in said.splitlines()) == 1, said
    return said.splitlines()[-1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where one can be made."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.name != "posix" or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_one_line_and_the_run_goes_on(small_disk: Path) -> None:
    run = small_disk / "run"
    filler = small_disk / "filler"
    filler.write_bytes(b"0" * 700_000)
    process = Forked("run", *FLAGS, "--out", str(run))
    said = one_error(process)
    assert process.returncode == 1
    assert f"No space left on device; free some space, and go on with: fedetf resume {run}" in said
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert call("resume", str(run))[0] == 0
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 40


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["safetensors", "onnx", "pt2"])
def test_an_export_to_a_full_disk(small_disk: Path, finished: Path, ending: str) -> None:
    """In a process of its own: PyTorch's writer ended it by a signal."""
    (small_disk / "filling").write_bytes(bytes(1000 * 1024))
    process = Forked("export", str(finished), "--to", str(small_disk / f"model.{ending}"))
    said = one_error(process)
    assert process.returncode == 1
    assert "No space left on device" in said
    assert f"model.{ending}" in said
    assert [path.name for path in small_disk.iterdir()] == ["filling"]


@pytest.mark.slow
@pytest.mark.parametrize("room", ["for no byte", "for no file"])
def test_every_command_that_writes_fails_on_a_full_disk(small_disk: Path, finished: Path, room: str) -> None:
    """With status 1, since what the user asked for was right."""
    (small_disk / "filling").write_bytes(bytes(2**20))
    (small_disk / "runs").mkdir()
    if room == "for no file":
        subprocess.run(["mount", "-o", "remount,size=20m,nr_inodes=3", str(small_disk)], check=True)
    data = ["--dataset", "digits", "--clients", "2", "--set", "data.limit=60"]
    for line in (
        ["report", str(finished), "--out", str(small_disk / "page.html")],
        ["report", str(finished), "--out", str(small_disk / "new" / "page.html")],
        ["diagnose", *data, "--seeds", "7", "--rounds", "1", "--out", str(small_disk / "new" / "page.html")],
        ["partition", *data, "--out", str(small_disk / "new")],
        ["run", *data, "--model", "mlp", "--rounds", "1", "--out", str(small_disk / "runs" / "new")],
        ["compare", *data, "--methods", "fedavg", "--seeds", "0", "--rounds", "1", "--out", str(small_disk / "new")],
        ["reproduce", "table1", "--scale", "smoke", "--out", str(small_disk / "new")],
        ["export", str(finished), "--to", str(small_disk / "new" / "model.safetensors")],
        ["flower", "new", str(small_disk / "app")],
    ):
        status, _, said = call(*line)
        assert status == 1, (line, said)
        assert "No space left on device; free some space" in said
        assert str(small_disk) in said


def test_an_app_on_a_full_disk_is_not_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.name == "settings.toml":
            raise OSError(28, "No space left on device", str(path))
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("fedetf.flower.new.write_whole", full)
        assert call("flower", "new", str(tmp_path / "app"))[0] == 1
    assert call("flower", "new", str(tmp_path / "app"))[0] == 0


@pytest.mark.slow
def test_a_read_only_disk(small_disk: Path, stopped: Path, finished: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    copy = shutil.copytree(stopped, small_disk / "run")
    whole = shutil.copytree(finished, small_disk / "whole")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for line in (
        ["resume", str(copy)],
        ["export", str(whole), "--to", str(small_disk / "model.safetensors")],
        ["diagnose", "--clients", "2", "--out", str(small_disk / "page.html")],
        ["report", str(whole), "--out", str(small_disk / "page.html")],
        ["run", *FLAGS, "--out", str(small_disk / "new")],
    ):
        status, _, said = call(*line)
        assert status in (1, 2)
        assert str(small_disk) in said
        assert "disk is read-only; take a folder" in said
    assert call("resume", str(whole))[0] == 0


@pytest.mark.slow
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    process = Forked("run", *FLAGS, "--out", str(tmp_path / "run"), before=limited)
    assert "File too large; raise the limit" in one_error(process)
    assert process.returncode == 1


@pytest.mark.slow
def test_little_memory(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (900 * 2**20, 900 * 2**20))

    flags = ["--method", "fedavg", "--model", "wrn56_4", "--engine", "serial", "--set", "data.size=64"]
    words = ["run", *flags, "--set", "train.batch_size=512", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedetf", *words], stderr=subprocess.PIPE, text=True, preexec_fn=limited
    )
    assert "there is not enough memory" in one_error(process)
    assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_standard_output() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "fedetf", "list", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 1
    assert process.stderr == "error: No space left on device; free some space, and call again: what was done is kept\n"


@pytest.mark.slow
def test_a_run_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = Forked("run", *FLAGS[:-4], "--rounds", "4000", *FLAGS[-4:], "--out", str(run))
    wait_for_rounds(run)
    run.rename(tmp_path / "elsewhere")
    said = one_error(process)
    assert process.returncode == 1
    assert "No such file or directory" in said
    assert (tmp_path / "elsewhere/checkpoints").is_dir()


@pytest.mark.slow
def test_a_terminal_that_is_gone(tmp_path: Path) -> None:
    def listening() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup

    run = tmp_path / "run"
    process = Forked("run", *FLAGS, "--set", "train.rounds=4000", "--out", str(run), before=listening)
    wait_for_rounds(run)
    process.send_signal(signal.SIGHUP)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert said.splitlines()[-1] == f"interrupted; what was done is saved; go on with: fedetf resume {run}"


def test_nohup_is_respected(tmp_path: Path) -> None:
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from fedetf.cli import main; "
        "main(['list', 'presets']); signal.raise_signal(signal.SIGHUP); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("alive\n")


def test_a_second_signal_does_not_disturb_the_end() -> None:
    program = (
        "import signal, weakref; from fedetf.interruption import listen; listen()\n"
        "class Kept: pass\n"
        "kept = Kept(); weakref.finalize(kept, signal.raise_signal, signal.SIGTERM)\n"  # as timeout sends it twice
        "try: signal.raise_signal(signal.SIGTERM)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


@pytest.mark.skipif(os.name != "posix", reason="a shell closes them")
@pytest.mark.parametrize(("closed", "what", "status"), [(">&-", "methods", 0), ("2>&-", "nosuch", 2)])
def test_closed_streams(closed: str, what: str, status: int) -> None:
    line = f"'{sys.executable}' -m fedetf list {what} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


# --- 6: command lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        ["run", "--set", "data.name=5"],
        ["run", "--set", f"data.alpha={'[' * 5000}"],
        ["run", "--out", "x" * 300],
        ["run", "--dataset", "x" * 300],
        ["run", "--dataset", os.fsdecode(b"\xff\xfe")],
        ["run", "--dataset", "authors"],
        ["export", "run", "--to", ""],
        ["export", "run", "--to", "x" * 300 + ".onnx"],
        ["report", "\x1b[31m"],
        ["compare", "--methods", "fedavg", "--seeds", "7", "--dataset", "nosuch"],
        ["reproduce", "table5", "--scale", "small", "--methods", "fedavg"],
        ["diagnose", "--dataset", "nosuch", "--out", "new/page.html"],
        ["run", "--device", "hpu", "--out", "run"],
        ["run", "--set", "measure.mlflow=nosuch", "--out", "run"],
        ["run", "--set", "engine.threads=2147483648", "--out", "run"],
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDETF_DATA", raising=False)
    assert call(*line)[0] == 2
    assert not list(tmp_path.iterdir())


def test_an_export_that_fails_leaves_nothing(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedetf.models.export.WRITERS", {".safetensors": fails})
    target = tmp_path / "out"
    assert call("export", str(finished), "--to", str(target / "model.safetensors"))[0] == 1
    assert not list(target.iterdir())


def test_rounds_beyond_reason_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    flags = ["--rounds", "1000000", "--clients", "300", "--set", "data.partition=iid"]
    status, _, said = call("run", *flags, "--out", str(tmp_path / "run"))
    assert status == 2
    assert "too many to list" in said


def test_a_page_about_runs_of_strangers_names_what_it_leaves_out(finished: Path) -> None:
    shutil.copytree(finished, finished.parent / "other")
    (finished.parent / "other/result.json").write_text(json.dumps({"rounds": 10**15}))
    report = write_report([finished.parent], finished.parent / "page.html")
    assert [problem.folder.name for problem in report.left_out] == ["other"]
