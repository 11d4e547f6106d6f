"""Calls of clients to coordinators: one stream for each, a request and its answer.

Law: a call is sent once; without an answer in time, or with the stream's end, nothing is known of it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.core.branch_names import GenerationTag, GlobalId
from services.coordinator.core.messages import (
    CloseAsked,
    CommitAsked,
    EnlistAsked,
    HoldAsked,
    OutcomeAsked,
    RollbackAsked,
)
from tests.simulation.promises import Promise

if TYPE_CHECKING:
    from tests.simulation.client import Client


@dataclass(frozen=True, slots=True)
class BeginCall:
    """`open_ms` as in `BeginAsked`."""

    open_ms: int


@dataclass(frozen=True, slots=True)
class Begun:
    """Answer to `BeginCall`: the transaction's name."""

    global_id: GlobalId
    generation: GenerationTag


Call = BeginCall | EnlistAsked | CloseAsked | CommitAsked | RollbackAsked | OutcomeAsked | HoldAsked
"""The coordinator gives the request's number."""


def call(client: "Client", name: str, message: Call, patience_us: int) -> Promise:
    """Ask the coordinator of that name; the promise's value is its answer, or None."""
    promise = Promise()
    side = client.world.network.connect(client.host, f"coordinator:{name}")

    def end(answer: object) -> None:
        if not promise.is_done:
            promise.resolve(answer)
            side.close()

    side.on_message = lambda answer: client.post(end, answer)
    side.on_close = lambda: client.post(end, None)
    side.send(message)
    client.world.loop.after(patience_us, client.post, end, None)
    return promise
