"""Names for what passes between replicas and the world, so that a run can say which branches of the rules it reached.

Law: it only looks; names are fixed words, as a `Note`'s event is.
"""

from typing import TYPE_CHECKING

from lockstep.core.effects import (
    AnyEffect,
    Note,
    PromoteSelf,
    RestoreLeaseKey,
    SwapMap,
    TellBackup,
    TellClient,
    TellStore,
    WakeAt,
)
from lockstep.core.inputs import AnyInput, BackupSaid, PrimarySaid, StoreSaid, Tick
from lockstep.core.replication import SubscriptionAccepted, SubscriptionRefused
from lockstep.core.server_messages import (
    AttachRefused,
    OutcomeAnswer,
    PushedBack,
    SessionAttached,
    SessionEnded,
)
from lockstep.core.store_protocol import StoreRefused, Truncate

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

_OUTCOMES = {1: "open", 2: "prepared", 3: "committed", 4: "rolled back", 5: "expired"}


def heard(process: "Broker", given: AnyInput) -> str:
    """The branch that an input belongs to before it is handled; "": none."""
    replica = process.replicas[given.set_name]
    match given:
        case Tick():
            primary = replica.primary
            if primary is not None and primary.membership.is_below_minimum():
                return "below min_in_sync"
        case BackupSaid() | PrimarySaid():
            known = replica.set_map.epoch if replica.set_map is not None else 0
            if given.message.epoch < known:
                return "lower epoch dropped"
            if given.message.epoch > known:
                return "higher epoch met"
        case StoreSaid(_, StoreRefused() as refused):
            return f"store refused: {refused.code.name}"
        case _:
            pass
    return ""


def heard_amid(process: "Broker", given: AnyInput) -> str:
    """The same of an input that comes while something that is done as a whole is half done."""
    replica = process.replicas[given.set_name]
    if not replica.is_half_done:
        return ""
    work = "what is done alone" if replica.primary is not None else "a frame"
    return f"amid {work}: {type(given).__name__}"


def done(effect: AnyEffect, process: "Broker") -> str:
    """The branch that an effect shows; "": none."""
    if isinstance(effect, SwapMap):
        return _swap(effect, process)
    if isinstance(effect, TellClient | TellBackup):
        return _said(effect.message) if type(effect.message) in _SPEAKING else ""
    if isinstance(effect, TellStore):
        return "log cut" if isinstance(effect.request, Truncate) else ""
    match effect:
        case PromoteSelf():
            return "promotion asked for"
        case RestoreLeaseKey():
            return "lease key asked for again"
        case WakeAt():
            is_primary = process.replicas[effect.set_name].primary is not None
            return "frame waits for clients" if is_primary else "commit applied behind an acknowledgement"
        case Note(_, "promoted", details):
            return "promotion: restarted" if "restarted" in details else "promotion: memory whole"
        case _:
            return ""


_SPEAKING = {
    PushedBack,
    AttachRefused,
    SessionEnded,
    SessionAttached,
    OutcomeAnswer,
    SubscriptionAccepted,
    SubscriptionRefused,
}
"""Messages that belong to a branch; most do not."""


def _said(message: object) -> str:  # one table, one line per kind
    match message:
        case PushedBack() as pushed:
            return f"pushed back: {pushed.code.name}"
        case AttachRefused() as refused:
            return f"attach refused: {refused.code.name}"
        case SessionEnded() as ended:
            return f"session ended: {ended.code.name}"
        case SessionAttached() as attached:
            return "session attached behind the first command" if attached.next_number > 1 else ""
        case OutcomeAnswer() as answer:
            return f"outcome: {_OUTCOMES.get(answer.state, str(answer.state))}"
        case SubscriptionAccepted() as accepted:
            if not accepted.snapshot_index:
                return "join by log"
            return "join by whole snapshot" if accepted.is_snapshot_whole else "join by memory snapshot"
        case SubscriptionRefused():
            return "subscription refused by a primary"
        case _:
            return ""


def _swap(effect: SwapMap, process: "Broker") -> str:
    primary = process.replicas[effect.set_name].primary
    if primary is None:
        return ""
    before, after = set(primary.membership.set_map.in_sync), set(effect.set_map.in_sync)
    if before == after:
        return "swap: only moves the revision"
    if before - after and after - before:
        return "swap: replacement"
    return "swap: member removed" if before - after else "swap: member taken in"
