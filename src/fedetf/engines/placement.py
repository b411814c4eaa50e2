"""Where workers are: which engine, on which devices, how many on each."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fedetf.config import complete
from fedetf.engines.forkserver import cores
from fedetf.errors import UserError, need
from fedetf.settings import EngineSettings

SHARED = ("cpu", "cuda")  # kinds of devices on which several processes can work


@dataclass(frozen=True)
class Placement:
    """An engine and its workers: the i-th is on ``devices[i % len(devices)]``, so that all devices have their share."""

    engine: str
    devices: tuple[torch.device, ...]  # a device that is named twice has twice as many workers
    workers: int | None  # None: as many as a Ray cluster has room for

    def device(self, worker: int) -> torch.device:
        """Where a worker is."""
        return self.devices[worker % len(self.devices)]

    def to_json(self, workers: Iterable[int]) -> dict[str, Any]:
        """What result.json says of it; ``workers`` are the numbers of those that there were in the end."""
        places = [worker % len(self.devices) for worker in workers]
        shares = [{"device": str(device), "workers": places.count(i)} for i, device in enumerate(self.devices)]
        return {"engine": self.engine, "devices": shares}


def choose(settings: EngineSettings) -> Placement:
    """What the settings ask for; ``auto`` takes worker processes where several can work, else the serial engine."""
    devices, name, workers = find_devices(settings.device), settings.name, settings.workers
    forks, first = hasattr(os, "fork"), devices[0]
    usual = cores() if len(devices) == 1 and first.type == "cpu" else len(devices)  # one on each GPU
    if name == "auto":
        name = "processes" if first.type in SHARED and forks and (workers or usual) > 1 else "serial"
    if name == "serial" and (workers or 1) > 1:
        raise UserError(f"the serial engine has one worker, not {workers}; leave --workers out")
    if name == "serial" and len(devices) > 1:
        raise UserError(f"the serial engine works on one device, not on {settings.device}; use --engine processes")
    if name != "serial" and first.type not in SHARED:
        raise UserError(f"engine {name!r} works on CPUs and on CUDA; on {first} use --engine serial")
    if name == "processes" and not forks:
        raise UserError("engine 'processes' needs fork, which this system lacks; use --engine serial")
    if name == "ray":
        _check_ray(settings, devices)
    return Placement(name, devices, {"serial": 1, "processes": workers or usual}.get(name, workers))


def _check_ray(settings: EngineSettings, devices: tuple[torch.device, ...]) -> None:
    need("ray", "engine 'ray'", "ray")
    if settings.address is not None:
        complete(settings.address, "engine.address")
    if len(devices) > 1 or devices[0].index is not None:
        raise UserError(f"Ray itself deals out the GPUs of a cluster; use --device cuda, not {settings.device}")


def find_devices(names: str) -> tuple[torch.device, ...]:
    """The devices that ``engine.device`` names, one or several with commas between them, all of one kind."""
    devices = tuple(find_device(name.strip()) for name in names.split(","))
    if len({device.type for device in devices}) > 1:
        raise UserError(f"--device {names}: the last bits of a run depend on the kind of device; choose one kind")
    return devices


def find_device(name: str) -> torch.device:
    """The device of that name; ``auto`` takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError):  # the last for kinds that need a package
        raise UserError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device
