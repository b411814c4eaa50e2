"""The engine that the settings ask for."""

from fedetf.engines.base import Engine
from fedetf.engines.job import Job
from fedetf.engines.placement import choose
from fedetf.engines.private import PrivateStates
from fedetf.engines.processes import ProcessEngine
from fedetf.engines.serial import SerialEngine


def make_engine(job: Job, private: PrivateStates) -> Engine:
    """The engine of ``engine.name``, with its workers on ``engine.device``."""
    placement = choose(job.settings.engine)
    if placement.engine == "serial":
        return SerialEngine(job, private, placement.devices[0])
    if placement.engine == "processes":
        return ProcessEngine(job, private, placement)
    from fedetf.engines.ray import RayEngine  # an extra that others need not have

    return RayEngine(job, private, placement, job.settings.engine.address)
