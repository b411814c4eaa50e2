"""Engines: where client steps run. An engine never knows which method it runs."""

from fedetf.engines.serial import SerialEngine
from fedetf.engines.worker import Job, Personal, Trained

__all__ = ["Job", "Personal", "SerialEngine", "Trained"]
