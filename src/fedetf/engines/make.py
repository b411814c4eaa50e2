"""The engine that the settings ask for."""

import os
from importlib.util import find_spec

import torch

from fedetf.config import complete
from fedetf.engines.base import Engine
from fedetf.engines.job import Job
from fedetf.engines.private import PrivateStates
from fedetf.engines.processes import ProcessEngine
from fedetf.engines.serial import SerialEngine
from fedetf.errors import UserError
from fedetf.settings import EngineSettings


def make_engine(job: Job, private: PrivateStates) -> Engine:
    """The engine of ``engine.name``."""
    settings = job.settings.engine
    name, device = choose(settings)
    if name == "serial":
        return SerialEngine(job, private, device)
    if name == "processes":
        return ProcessEngine(job, private, settings.workers or cores())
    from fedetf.engines.ray import RayEngine  # an extra that others need not have

    return RayEngine(job, private, settings.workers, settings.address)


def choose(settings: EngineSettings) -> tuple[str, torch.device]:
    """The engine and its device; ``auto`` takes worker processes on a CPU with several cores, else serial."""
    device, name, workers = find_device(settings.device), settings.name, settings.workers
    forks = hasattr(os, "fork")
    if name == "auto":
        name = "processes" if device.type == "cpu" and forks and (workers or cores()) > 1 else "serial"
    if name == "serial" and (workers or 1) > 1:
        raise UserError(f"the serial engine has one worker, not {workers}; leave --workers out")
    if name != "serial" and device.type != "cpu":
        raise UserError(f"engine {name!r} works on CPUs; on {device} use --engine serial")
    if name == "processes" and not forks:
        raise UserError("engine 'processes' needs fork, which this system lacks; use --engine serial")
    if name == "ray" and find_spec("ray") is None:
        raise UserError("engine 'ray' is an extra; install it with: pip install 'fedetf[ray]'")
    if name == "ray" and settings.address is not None:
        complete(settings.address, "engine.address")
    return name, device


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(name: str) -> torch.device:
    """The device that ``engine.device`` names; ``auto`` takes CUDA, then MPS, then the CPU."""
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
