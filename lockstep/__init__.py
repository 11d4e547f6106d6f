"""Lockstep: a highly available, transactional message broker.

`lockstep.connect` and the errors come from `lockstep.client`, when they are first used: a core that is imported on its own must
not bring gRPC with it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.client import InDoubt, LockstepError, Rejected, connect

# Before gRPC is imported. Its handlers around fork() crash now and then in the child of a process whose event loop runs gRPC,
# and a supervisor is such a process. Nobody here goes on with gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Where grpcio is used (etcd, clients without an event loop), whoever waits for a stream polls its sockets itself: by its event
# engine each message passes through one thread more, and costs 1.7 times the processor time and the time on its way.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

__all__ = ["InDoubt", "LockstepError", "Rejected", "connect"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("lockstep.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
