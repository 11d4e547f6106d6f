"""Which branches of the rules a run has reached, and how often (issue 2, item 3).

Law: a name in `MUST_BE_REACHED` that a run of many seeds never reached fails that run: where the simulator never comes, it
finds nothing. Names come from `Note` effects and from what passes the simulated driver.
"""

from collections import Counter

from lockstep.core.effects import Note


class Branches:
    """Counts of one run; runs are added up."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def reach(self, name: str, times: int = 1) -> None:
        self.counts[name] += times

    def note(self, note: Note) -> None:
        self.counts[f"note: {note.event}"] += 1


MUST_BE_REACHED: dict[str, str] = {
    "transactions begun by a commit": "T1: the name is known before the first operation",
    "commit with all of its transaction": "T1: a transaction that is applied as a whole where it is executed",
    "accepts said with their commit": "T1: the same of one that accepts",
    "accepts said with their commit that brings a publish": "T1: the same of one that does both",
    "commit with a publish: done": "T1: the last operation and the commit in one command",
    "commit with a publish: not done": "T1: the same, refused or in doubt",
    "core fault: following": "a fault ends one set's part of a broker (ARCHITECTURE, Decisions): that of a backup",
    "core fault: resting": "the same, of one that rests",
    "core fault: serving": "the same, of a primary",
    "amid a frame: PrimarySaid": "what is long goes in pieces (ARCHITECTURE, Decisions): a backup applies a frame",
    "amid a frame: StoreSaid": "the same, while its disk answers",
    "amid what is done alone: BackupSaid": "what nothing may come between goes in pieces, too: backups wait",
    "amid what is done alone: ClientSaid": "the same: clients wait",
    "amid what is done alone: ClientStreamClosed": "the same: a client that leaves",
    "amid what is done alone: MapSeen": "the same: a primary hears at once that it is deposed",
    "attach refused: NOT_PRIMARY": "DESIGN 6: clients look for the primary",
    "attach refused: UNKNOWN_SESSION": "DESIGN 6: a session that the set no longer knows",
    "begin: in doubt": "DESIGN 6: a retry to a lost session is in doubt",
    "below min_in_sync": "R3: nothing completes below min_in_sync",
    "client left without a word": "DESIGN 6: a session's time-out ends what it held",
    "broker crash: amid a work": "what is half done is never taken for a memory",
    "broker crash: between effects": "DESIGN 9: crashes at any effect",
    "commit: ROLLED_BACK": "T8: failover aborts open transactions",
    "commit: done": "T1: commit",
    "commit: in doubt": "P6: unknown outcome",
    "consumer drained": "AMQP 1.0, 2.6.7: a drain is answered",
    "copies shown": "AMQP 1.0, 3.5.3: browsing consumers",
    "etcd transaction failed": "R1: a swap or promotion lost the race",
    "etcd transaction in doubt": "R3: a change whose answer was lost",
    "group of readers known": "DESIGN 7: a group is owed what it has not acknowledged",
    "journals compared": "DESIGN 3: (index, epoch) names one content on all journals",
    "join by log": "R8: a returning replica is sent only what it lacks",
    "join by memory snapshot": "R12: a restarted replica gets the non-durable state",
    "join by whole snapshot": "R8: a newcomer",
    "lease ended before a message left": "R6: nothing is said after the lease",
    "lease key asked for again": "R6: a lease key is re-created only while the map has the epoch",
    "lease revoked by a supervisor": "R6: promotion before the lease ends",
    "log cut": "R5: what members have beyond the new log is cut",
    "lower epoch dropped": "R2: lower epochs are refused",
    "note: backup lost": "R4: a lost backup",
    "note: new disk": "R1: a directory with another disk is a learner",
    "note: primary silent": "DESIGN 9: heartbeats",
    "note: promotion failed": "R5: two stand, one wins",
    "note: promotion in doubt": "R5: a promotion whose answer was lost",
    "note: refused": "DESIGN 3: a vote no",
    "note: stopped": "R1, R2: a reign that is over",
    "note: swap in doubt": "R3, R4: a swap whose answer was lost",
    "outcome: committed": "T5: GetOutcome",
    "map rebuilt": "R1, history 26: an etcd that was set back is found out, and operators know a way on",
    "outcome: open": "T5: GetOutcome of an open transaction, without a fence",
    "outcome: rolled back": "T5: GetOutcome of a fenced or aborted transaction",
    "promotion: memory whole": "R5: promotion of a member that kept its memory",
    "promotion: restarted": "R5, R12: promotion of a restarted member",
    "publish: QUEUE_FULL": "DESIGN 3: limits are checked before the append",
    "publish: ROLLBACK_ONLY": "T1: a failed operation makes its transaction rollback-only",
    "publish: STORE_FULL": "DESIGN 3: the reserve",
    "refusal of an open transaction": "DESIGN 3: a refusal in time",
    "refusal too late": "DESIGN 3: later there is no no",
    "rollback: TRANSACTION_FINISHED": "T2: a rollback behind the commit",
    "segments owed at the end": "DESIGN 5: segments stay while they hold what is owed",
    "selected messages delivered": "AMQP 1.0, 3.5.3: filters",
    "session attached behind the first command": "DESIGN 6: a session resumed",
    "session attached where it was awaited": "DESIGN 6: a broker that said nothing for long",
    "session lost": "DESIGN 6: everything in flight is in doubt",
    "settle with exclusion: done": "AMQP 1.0, 3.4.5: modified, undeliverable-here",
    "settle: STALE_DELIVERY": "T6: an accept of an earlier epoch's delivery",
    "store refused: STORE_FULL": "DESIGN 5: a full disk",
    "store refused: UNAVAILABLE": "DESIGN 5: an I/O error closes the set",
    "store: owed segments dropped": "DESIGN 5: what is owed is bounded",
    "store: torn tail": "R10: a torn tail is cut",
    "subscription refused by a primary": "R2, R8: who may not join, or not yet",
    "swap: member removed": "R4: shrink",
    "swap: member taken in": "R8: join",
}
"""Name -> the rule whose branch it is."""


def missing(counts: Counter[str], wanted: dict[str, str] = MUST_BE_REACHED) -> list[str]:
    """Names that were never reached, with their rules."""
    return [f"{name} ({rule})" for name, rule in sorted(wanted.items()) if not counts[name]]
