"""Lockstep: a highly available, transactional message broker.

`lockstep.connect` and the errors come from `lockstep.client`, when they are first used: a core that is imported on its own must
not bring gRPC with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.client import InDoubt, LockstepError, Rejected, connect

__all__ = ["InDoubt", "LockstepError", "Rejected", "connect"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("lockstep.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
