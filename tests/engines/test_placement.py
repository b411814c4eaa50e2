"""Which engine, which devices, how many workers on each; and what happens if one has not enough memory.

There is no GPU here: ``cpu,cpu`` stands for two of them, which have all but the name in common with real ones.
"""

import os
from pathlib import Path

import pytest
import torch
from same import OPTIONS, SMALL, assert_equal
from torch._utils import _get_device_index

import fedetf
from fedetf import UserError
from fedetf.engines import serving
from fedetf.engines.placement import Placement, choose
from fedetf.errors import OutOfMemory, is_out_of_memory
from fedetf.settings import EngineSettings

FOUR = {"device": "cpu,cpu", "workers": 4}


def placed(monkeypatch: pytest.MonkeyPatch, **settings: object) -> tuple[str, list[str], int | None]:
    """What settings give on a machine of two cores that has every device."""
    monkeypatch.setattr("fedetf.engines.placement.find_device", torch.device)
    monkeypatch.setattr("fedetf.engines.placement.cores", lambda: 2)
    found = choose(EngineSettings(**settings))
    return found.engine, [str(device) for device in found.devices], found.workers


@pytest.mark.parametrize(
    ("settings", "engine", "devices", "workers"),
    [
        ({"device": "cpu"}, "processes", ["cpu"], 2),  # one for each core
        ({"device": "cpu", "workers": 1}, "serial", ["cpu"], 1),
        ({"device": "cuda"}, "serial", ["cuda"], 1),
        ({"device": "cuda", "workers": 4}, "processes", ["cuda"], 4),  # side by side on one GPU
        ({"device": "cuda:0, cuda:1"}, "processes", ["cuda:0", "cuda:1"], 2),  # one for each GPU
        ({"device": "cuda:0,cuda:1", "workers": 6}, "processes", ["cuda:0", "cuda:1"], 6),
        ({"device": "cuda:1", "name": "processes"}, "processes", ["cuda:1"], 1),
        ({"device": "mps"}, "serial", ["mps"], 1),
        ({"device": "cuda", "name": "ray"}, "ray", ["cuda"], None),
    ],
)
def test_what_settings_ask_for(settings, engine, devices, workers, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    assert placed(monkeypatch, **settings) == (engine, devices, workers)


def test_one_core_is_for_the_serial_engine() -> None:
    assert choose(EngineSettings(device="cpu")).engine == "serial"  # see conftest.py: one core


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "serial", "workers": 2}, "the serial engine has one worker, not 2; leave --workers out"),
        ({"name": "serial", "device": "cpu,cpu"}, "works on one device, not on cpu,cpu; use --engine processes"),
        ({"name": "processes", "device": "mps"}, "works on CPUs and on CUDA; on mps use --engine serial"),
        ({"device": "cpu,cuda"}, "the last bits of a run depend on the kind of device; choose one kind"),
        ({"name": "ray", "device": "cuda:0,cuda:1"}, "Ray itself deals out the GPUs of a cluster; use --device cuda"),
    ],
)
def test_what_cannot_be(settings: dict, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=message):
        placed(monkeypatch, **{"device": "cpu", **settings})


def test_a_device_that_is_not_there() -> None:
    for device in ("cuda:7", "cpu,cuda:7", "cpu,", "quantum"):
        with pytest.raises(UserError, match="is not available here; use --device cpu, or auto"):
            choose(EngineSettings(device=device))


def test_workers_are_dealt_out_over_devices() -> None:
    two = Placement("processes", (torch.device("cuda:0"), torch.device("cuda:1")), 5)
    assert [two.device(worker).index for worker in range(5)] == [0, 1, 0, 1, 0]
    shares = [{"device": "cuda:0", "workers": 3}, {"device": "cuda:1", "workers": 2}]
    assert two.to_json(range(5)) == {"engine": "processes", "devices": shares}
    assert [share["workers"] for share in two.to_json([0, 1, 4])["devices"]] == [2, 1]  # 2 and 3 were let go


def test_a_worker_on_a_gpu_chooses_it_by_its_number_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to choose plain ``cuda``; its own function says so here too, where there is no GPU."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(_get_device_index(device)))
    monkeypatch.setattr("fedetf.engines.gpu.seen", lambda handles: ("train", handles))
    for name in ("cuda", "cuda:1"):
        assert serving._images(torch.device(name), b"handles") == ("train", b"handles")
    assert chosen == [1]
    assert serving._images(torch.device("cpu"), b"") is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedetf", "ditto"])
def test_two_devices_and_four_workers_give_the_bits_of_the_serial_engine(method: str, tmp_path: Path) -> None:
    options = {**OPTIONS, "method": method, "settings": {**SMALL, "measure.metrics": "accuracy,collapse"}}
    serial = fedetf.run(engine="serial", device="cpu", **options)
    four = fedetf.run(**FOUR, **options, out=tmp_path / "run")
    assert_equal(serial, four)
    assert serial.summary["placement"] == {"engine": "serial", "devices": [{"device": "cpu", "workers": 1}]}
    shares = [{"device": "cpu", "workers": 2}] * 2
    assert four.summary["placement"] == {"engine": "processes", "devices": shares}


class Hungry(fedetf.Method):
    """There is memory for two processes only."""

    folder: str = ""

    def local(self, client) -> None:
        for seat in range(2):
            try:
                (Path(self.folder) / str(seat)).symlink_to(str(os.getpid()))  # one takes it, the others do not get it
                break
            except FileExistsError:
                if str((Path(self.folder) / str(seat)).readlink()) == str(os.getpid()):
                    break
        else:
            raise torch.OutOfMemoryError("CUDA out of memory")
        super().local(client)


def test_with_too_little_memory_there_are_fewer_workers_and_the_same_bits(tmp_path: Path) -> None:
    options = {**OPTIONS, "participation": 1.0}
    with pytest.warns(UserWarning, match="not enough memory for so many workers") as warned:
        few = fedetf.run(method=Hungry, **options, **FOUR, settings={**SMALL, "method.folder": str(tmp_path)})
    assert sum("not enough memory" in str(each.message) for each in warned) == 1
    assert sum(share["workers"] for share in few.summary["placement"]["devices"]) == 2
    assert_equal(few, fedetf.run(method="fedavg", engine="serial", **options, settings=SMALL))


class Starving(fedetf.Method):
    def local(self, client) -> None:
        raise MemoryError


def test_without_memory_for_a_single_worker_the_run_ends() -> None:
    with (
        pytest.warns(UserWarning, match="not enough memory for so many workers"),
        pytest.raises(OutOfMemory, match=r"client \d, round 1: there is not enough memory; take fewer --workers"),
    ):
        fedetf.run(method=Starving, **OPTIONS, **FOUR, settings=SMALL)


def test_words_for_too_little_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))  # where a process cannot even begin to use a GPU
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
