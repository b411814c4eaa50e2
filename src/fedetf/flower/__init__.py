"""The same methods on real sites: a Flower ServerApp and ClientApp around the engine-neutral steps."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedetf.flower.client import client_app
    from fedetf.flower.server import server_app

__all__ = ["client_app", "server_app"]

_HOMES = {"client_app": "client", "server_app": "server"}


def __getattr__(name: str) -> Any:
    """Load an app when it is asked for: making keys needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedetf.flower' has no attribute {name!r}")
    return getattr(import_module(f"fedetf.flower.{_HOMES[name]}"), name)
