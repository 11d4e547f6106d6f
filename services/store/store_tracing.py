"""Spans of a store: from the arrival of a transaction's end to its being on the disk.

Law: a set is traced from the moment on at which a broker has said which generation of the cluster it is of.
"""

from typing import TYPE_CHECKING

from lockstep.core.ids import SetName
from lockstep.core.store_protocol import (
    AnyStoreAnswer,
    AnyStoreRequest,
    Appended,
    AppendFrames,
    OpenSet,
    RememberMap,
)
from lockstep.runtime.append_tracing import AppendTracing

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing


class StoreTracing:
    """Lives as long as the server, if traces are on; used from its event loop."""

    def __init__(self, tracing: "Tracing") -> None:
        self._tracing = tracing
        self._appends: dict[SetName, AppendTracing] = {}
        self._generations: dict[SetName, str] = {}

    def requested(self, request: AnyStoreRequest) -> None:
        """Before the core has it."""
        match request:
            case OpenSet():
                self._of(request.set_name).cut()
            case RememberMap():
                self._generations[request.set_name] = request.generation
            case AppendFrames():
                self._of(request.set_name).begun(request.frames)
            case _:
                pass

    def answered(self, answer: AnyStoreAnswer) -> None:
        """Before it is sent."""
        if isinstance(answer, Appended):
            self._of(answer.set_name).durable(answer.log_end)

    def _of(self, set_name: SetName) -> AppendTracing:
        found = self._appends.get(set_name)
        if found is None:
            found = AppendTracing(
                self._tracing, set_name, "store", lambda: self._generations.get(set_name, "")
            )
            self._appends[set_name] = found
        return found
