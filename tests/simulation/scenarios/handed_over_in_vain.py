"""A set is handed over, and whoever leads next is not behind the log that was handed on (T6, T8): what was open ends, as after a
failure.

B, which was to lead, begins its epoch and dies before anybody has heard of it; C leads the one after that, with the same log. Or
the word that reaches B speaks of another log, or of other transactions, than B has. Nobody can know what became of what was in
hand since, so it goes back, and open transactions are rolled back.
"""

from collections.abc import Callable

from msgspec.structs import replace

from lockstep.core.effects import AnyEffect, TellBackup, TellStore
from lockstep.core.ids import BrokerId
from lockstep.core.inputs import AnyInput, PrimarySaid
from lockstep.core.replication import HandedOver
from lockstep.core.server_messages import OutcomeState
from lockstep.core.store_protocol import AppendFrames
from tests.simulation.broker import Broker
from tests.simulation.staging.hand_overs import ask_hand_over
from tests.simulation.staging.stage import SET, A, B, C, Stage

CASES = ("a reign between", "a longer log", "a shorter log", "another transaction is open")


def play(stage: Stage, case: str) -> None:
    stage.start()
    client, other, world = stage.client("c1"), stage.client("c2"), stage.world
    client.declare("a", "b")
    stage.done(client.publish("a"))
    key = client.begin()
    stage.done(client.publish("b", key))
    held = client.take("a")
    _, inbox = other.session.consume("a", 10)
    if case == "a reign between":
        stage.when(_begins(B), lambda: stage.power_loss(B))
    else:
        world.as_heard = lambda process, given: altered(given, case)
    ask_hand_over(stage, A, B)
    stage.until(lambda: stage.epoch == (3 if case == "a reign between" else 2), what="another epoch")
    stage.serves(C if case == "a reign between" else B)
    stage.expect(world.branches.counts["note: handed over in vain"] == 1, "it is noticed")
    stage.until(lambda: key in client.session.aborted, what="the client is told")
    stage.expect(other.outcome(key) == OutcomeState.ROLLED_BACK, "it is rolled back")
    stage.until(lambda: len(inbox.waiting) == len(held), what="what was in hand, for others")
    world.as_heard = lambda process, given: given
    stage.revive(A, B, C)


def _begins(broker: BrokerId) -> Callable[[Broker, AnyEffect], bool]:
    """Its first frame as a primary is about to leave, for a store or for a backup."""

    def matches(process: Broker, effect: AnyEffect) -> bool:
        is_frame = isinstance(effect, TellBackup) or (
            isinstance(effect, TellStore) and isinstance(effect.request, AppendFrames)
        )
        return is_frame and process.broker == broker and process.replicas[SET].primary is not None

    return matches


def altered(given: AnyInput, case: str) -> AnyInput:
    """The word as it is not true of the log of whoever hears it."""
    if not isinstance(given, PrimarySaid) or not isinstance(given.message, HandedOver):
        return given
    word = given.message
    match case:
        case "a longer log":
            word = replace(word, log_end=word.log_end + 1)
        case "a shorter log":
            word = replace(word, log_end=word.log_end - 1)
        case _:
            word = replace(word, open=())
    return replace(given, message=word)
