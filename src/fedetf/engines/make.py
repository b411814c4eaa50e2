"""The engine that the settings ask for."""

import os

import torch

from fedetf.config import EngineSettings
from fedetf.engines.base import Engine
from fedetf.engines.job import Job
from fedetf.engines.private import PrivateStates
from fedetf.engines.processes import ProcessEngine
from fedetf.engines.serial import SerialEngine
from fedetf.errors import UserError


def make_engine(job: Job, private: PrivateStates) -> Engine:
    """The engine of ``engine.name``; ``auto`` takes worker processes on a CPU with several cores, else serial."""
    settings = job.settings.engine
    device = find_device(settings.device)
    name = choose(settings, device)
    if name == "serial":
        if (settings.workers or 1) > 1:
            raise UserError(f"the serial engine has one worker, not {settings.workers}; leave --workers out")
        return SerialEngine(job, private, device)
    if device.type != "cpu":
        raise UserError(f"engine {name!r} works on CPUs; on {device} use --engine serial")
    if name == "ray":
        from fedetf.engines.ray import RayEngine  # an extra of its own

        return RayEngine(job, private, settings.workers, settings.address)
    if not hasattr(os, "fork"):
        raise UserError("engine 'processes' needs fork, which this system lacks; use --engine serial")
    return ProcessEngine(job, private, settings.workers or cores())


def choose(settings: EngineSettings, device: torch.device) -> str:
    """The engine's name, ``auto`` resolved."""
    if settings.name != "auto":
        return settings.name
    several = (settings.workers or cores()) > 1 and hasattr(os, "fork")
    return "processes" if several and device.type == "cpu" else "serial"


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
    except (RuntimeError, AssertionError):
        raise UserError(f"device {name!r} is not available here; use --device cpu, or auto") from None
    return device
