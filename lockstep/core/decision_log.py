"""The decision log: what etcd holds about distributed transactions, and what a prepared branch may conclude from it (DESIGN T3).

Law: `participants` is written before the first prepare and `decision` put-if-absent while that very entry stands; both go
together, when every participant has acknowledged, and leave an `outcome` for a while. So participants without a decision mean
*undecided*; and where nothing is left, only a prepared branch's own resource manager may presume abort, and only in the
generation in which the transaction was begun, when the roll was called (`stamps.py`): a COMMIT never goes before that branch has
acknowledged it, unless etcd was set back. To whoever holds no prepared branch, nothing left means nothing at all (history 26).

An outcome COMMIT commits what voted before it. What was prepared under the same name behind it is work that was repeated: its
resource manager should have refused that name, and rolls it back where it has forgotten why. That is seen by clocks alone, so
only in one history: data loss that was accepted may have brought the vote back that was counted (history 26).

Either commits those alone that it was decided for: a branch that is not in that list has a vote that nobody has counted, and
nobody will.

Whoever presumes must take no vote on that branch from before it reads until it has rolled back: otherwise a coordinator that
begins in between is told "prepared" of a branch that is about to go.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple

from lockstep.core.branch_names import (
    GENERATION_TAG_CHARACTERS,
    BranchName,
    GenerationTag,
    GlobalId,
    ParticipantName,
    generation_tag,
    parse_global_id,
)
from lockstep.core.ids import Incarnation
from lockstep.core.stamps import NO_STAMPS, Stamps
from lockstep.core.wire_numbers import known
from lockstep.core.xa import XaStatus

CLOCK_MS = 60_000
"""How far the wall clocks of coordinators and participants may differ."""


class Verdict(StrEnum):
    """The value of a decision key."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class ParticipantsEntry:
    """Value of a participants key. Immutable, but that the coordinator which is to commit a closed one signs it, once, and that
    whoever decides and completes it says which branches are finished."""

    participants: tuple[ParticipantName, ...]
    """By branch number; "": enlisted with a coordinator that the writer knew nothing of. Its branch ends by itself."""
    generation: GenerationTag
    """In which the transaction was begun: the xids of its branches say so."""
    owner: Incarnation
    """The coordinator that wrote it; while it lives, it finishes."""
    written_ms: int
    """Wall clock of the owner: only ages are made of it, which decide when to look and whom to ask before, never what to find."""
    is_closed: bool = False
    """The list is fixed and the client prepares branches of its own; nobody has asked a participant to prepare yet."""
    finished: tuple[int, ...] = ()
    """Numbers of branches that are not told the end: they had nothing to commit, and their participants know them no more."""
    committed: tuple[int, ...] = ()
    """Numbers of those that have acknowledged a COMMIT while others are away: they may be forgotten before these are back."""
    is_timed_out: bool = False
    """Nobody had asked for an end. The ABORT that stands with it says nothing of a client that names the first one alone: that
    ends in one phase, without the log."""

    def encode(self) -> bytes:
        return _encode(
            {
                "participants": self.participants,
                "generation": self.generation,
                "owner": self.owner,
                "written_ms": self.written_ms,
                "is_closed": self.is_closed,
                "finished": self.finished,
                "committed": self.committed,
                **({"is_timed_out": True} if self.is_timed_out else {}),
            }
        )

    @staticmethod
    def decode(data: bytes) -> "ParticipantsEntry":
        """Raises `ValueError` for anything else."""
        try:
            fields = json.loads(data)
            return ParticipantsEntry(
                tuple(ParticipantName(str(name)) for name in fields["participants"]),
                GenerationTag(str(fields["generation"])),
                Incarnation(str(fields["owner"])),
                int(fields["written_ms"]),
                bool(fields["is_closed"]),
                tuple(int(number) for number in fields.get("finished", ())),
                tuple(int(number) for number in fields.get("committed", ())),
                bool(fields.get("is_timed_out", False)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a list of participants: {error}") from error

    def awaited(self, participant: ParticipantName) -> list[int]:
        """Numbers of its branches that may be told to commit, and of which this does not say that they have."""
        return [
            number
            for number, name in enumerate(self.participants)
            if name == participant and number not in self.committed and number not in self.finished
        ]


class ListRead(NamedTuple):
    """A participants entry as it was read, or written. Its value is compared, too: an etcd that was set back gives its revisions
    once more, to what others write there (DESIGN R1).
    """

    revision: int = 0
    """Its mod_revision; 0: there is none."""
    value: bytes = b""
    """As it is in etcd: a later version may have said more than this one understands."""


NO_LIST = ListRead()


@dataclass(frozen=True, slots=True)
class LoggedParticipants:
    """What the log has of transactions that are not over, for a participant that may have committed and forget that."""

    lists: tuple[tuple[GlobalId, ParticipantsEntry], ...] = ()
    """Those by which it is awaited, the oldest first."""
    seen_up_to_ms: int | None = None
    """Of what was begun later nothing is known: there is too much; None: all was looked at that was asked for."""


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """Value of an outcome key, which stays for a retention after the transaction has left the log."""

    verdict: Verdict
    hazards: tuple[tuple[ParticipantName, str], ...] = ()
    """Participants that did not end as decided, or could not say so, each with its answer."""
    heuristic: XaStatus = XaStatus.OK
    """What that makes of the whole; HEURHAZ for what a later version says and this one does not know. Not OK: kept, without a
    retention, until an operator has it forgotten."""
    ended_ms: int = 0
    """When every participant had acknowledged, by the wall clock of the coordinator that wrote it; 0: not said (older ones)."""
    participants: tuple[ParticipantName, ...] = ()
    """Those of a COMMIT, by branch number; (): of an ABORT, or not said (older ones)."""
    is_known: bool = True
    """False: no outcome stands, for the ABORT was a time-out's, and a participant may have committed alone, which that one knows.
    It is kept for its hazards, where operators look (`DecisionKeys.heuristic`), and not among the outcomes."""

    def encode(self) -> bytes:
        return _encode(
            {
                "verdict": self.verdict,
                "hazards": self.hazards,
                "heuristic": self.heuristic,
                "ended_ms": self.ended_ms,
                "participants": self.participants,
                **({} if self.is_known else {"is_known": False}),
            }
        )

    @staticmethod
    def decode(data: bytes) -> "OutcomeEntry":
        """Raises `ValueError` for anything else."""
        try:
            fields = json.loads(data)
            hazards = tuple((ParticipantName(str(name)), str(answer)) for name, answer in fields["hazards"])
            heuristic = known(XaStatus, int(fields.get("heuristic", XaStatus.OK)), XaStatus.HEURHAZ)
            participants = tuple(ParticipantName(str(name)) for name in fields.get("participants", ()))
            ended_ms = int(fields.get("ended_ms", 0))
            is_known = bool(fields.get("is_known", True))
            return OutcomeEntry(
                Verdict(fields["verdict"]), hazards, heuristic, ended_ms, participants, is_known
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an outcome: {error}") from error


@dataclass(frozen=True, slots=True)
class LogView:
    """All that the log says of one transaction, read at one revision."""

    generation: str = ""
    """The cluster's; "": it has none."""
    participants: ParticipantsEntry | None = None
    participants_revision: int = 0
    """Its mod_revision; 0: there is none."""
    decision: Verdict | None = None
    outcome: OutcomeEntry | None = None
    revision: int = 0
    """etcd's, when it was read."""
    is_set_back: bool = False
    """etcd was restored from a backup, as it says itself: what it lacks proves nothing (DESIGN R1, history 26)."""
    stamps: Stamps = NO_STAMPS
    stamps_revision: int = 0
    """The mod_revision of their key; 0: it is absent."""
    is_unattested: bool = False
    """Somebody whose disk may remember more of etcd was not compared with it yet: what it lacks proves nothing (DESIGN R1)."""
    stamps_value: bytes = b""
    """Of their key, as it was read."""
    participants_value: bytes = b""
    """Of the entry, as it was read."""

    @property
    def list_read(self) -> ListRead:
        """What names this very participants entry."""
        return ListRead(self.participants_revision, self.participants_value)

    @property
    def has_nothing(self) -> bool:
        """Whether all that could be concluded of it is an abort presumed."""
        return self.decision is None and self.participants is None and self.outcome is None

    def may_have(self, number: int, is_own: Callable[[ParticipantName], bool]) -> bool:
        """Whether that branch may be one of those that this is about; also where nothing says. `is_own`: whether that names the
        branch's resource manager.
        """
        names: tuple[ParticipantName, ...] = ()
        if self.participants is not None:
            names = self.participants.participants
        elif self.outcome is not None:
            names = self.outcome.participants
        return not names or (number < len(names) and is_own(names[number]))


class Fate(Enum):
    """What a prepared branch may do."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    WAIT = "wait"
    """Undecided: whoever coordinates will say, or somebody will win ABORT. Or a roll call is not answered yet."""
    ASK_AN_OPERATOR = "ask an operator"
    """The history of the cluster is not the one in which it was begun, and nothing is left, or an outcome from before its prepare
    by the clocks: nothing may be presumed."""


def fate(
    view: LogView, branch: BranchName, is_own: Callable[[ParticipantName], bool], prepared_ms: int = 0
) -> Fate:
    """What the log says to a prepared branch; `view` was read while it was prepared.

    `is_own`: as of `LogView.may_have`. `prepared_ms`: when it was, by its resource manager's wall clock; 0: not known.
    """
    if view.decision is not None:
        is_commit = view.decision is Verdict.COMMIT and view.may_have(branch.number, is_own)
        return Fate.COMMIT if is_commit else Fate.ROLL_BACK
    if view.participants is not None:
        return Fate.WAIT
    if view.outcome is not None:
        # It prepared late, after an ABORT; or its acknowledgement of a COMMIT is lost to it: restored from a backup.
        if view.outcome.verdict is not Verdict.COMMIT or not view.may_have(branch.number, is_own):
            return Fate.ROLL_BACK
        if not _is_repeated(view.outcome, prepared_ms):
            return Fate.COMMIT
        # Where loss was accepted since, the very vote that was counted may be here again: no clock speaks against it.
        return Fate.ROLL_BACK if _is_of(view, branch.generation) else Fate.ASK_AN_OPERATOR
    if not _is_of(view, branch.generation):
        return Fate.ASK_AN_OPERATOR
    return Fate.WAIT if view.is_unattested else Fate.ROLL_BACK


def _is_of(view: LogView, begun_in: GenerationTag) -> bool:
    """Whether the cluster's history is still the one in which the transaction was begun."""
    return bool(view.generation) and generation_tag(view.generation) == begun_in


def _is_repeated(outcome: OutcomeEntry, prepared_ms: int) -> bool:
    """Whether it was prepared when its transaction had ended already, by any clock: no vote of it was counted."""
    return bool(outcome.ended_ms and prepared_ms > outcome.ended_ms + CLOCK_MS)


@dataclass(frozen=True, slots=True)
class RevisionSeen:
    """The highest revision that an answer of etcd had, and the cluster's generation that came with it. Noted when a question is
    sent and kept for its answer, which may well be behind one that overtook it.
    """

    revision: int = 0
    generation: str | None = None
    """Its tag; None: nothing was seen yet."""


class SetBackWatch:
    """Notices an etcd that was set back. Lives as long as its process, which gives it what etcd answers.

    Law: while the cluster keeps its generation, etcd is never behind what was known when it was asked. One that is was set back
    and lacks decisions; it lacks them for good, also when its revision has passed what was seen. So nothing is believed from
    then on, until it shows a generation that was never seen here: a map that was rebuilt (DESIGN R1, histories 13 and 26).
    """

    def __init__(self) -> None:
        self.seen = RevisionSeen()
        self.is_set_back = False
        self._generations_past: set[str | None] = set()

    def take(self, revision: int, generation: str, asked: RevisionSeen) -> bool:
        """Whether this answer may be believed; `generation`: or its tag, "": there was none; `asked`: `seen` at the sending."""
        tag, known = generation[:GENERATION_TAG_CHARACTERS], self.seen.generation
        if tag == known:
            if asked.generation == known and revision < asked.revision:
                self.is_set_back = True
            self.seen = RevisionSeen(max(revision, self.seen.revision), tag)
        elif asked.generation != known:
            # It was asked before a change of the generation that another answer has shown.
            return False
        elif tag in self._generations_past:
            self.is_set_back = True
        else:
            self._generations_past.add(known)
            self.seen, self.is_set_back = RevisionSeen(revision, tag), False
        return not self.is_set_back


@dataclass(frozen=True, slots=True)
class DecisionKeys:
    """etcd keys of one cluster's distributed transactions.

    Beside the cluster's other keys (`cluster_map.Keys`) and not below them: brokers watch all of those, and a transaction must
    not wake every broker.
    """

    cluster: str

    @property
    def prefix(self) -> str:
        """Everything that a recoverer reads at one revision."""
        return f"/lockstep-transactions/{self.cluster}/"

    @property
    def all_participants(self) -> str:
        return f"{self.prefix}participants/"

    @property
    def all_decisions(self) -> str:
        return f"{self.prefix}decision/"

    @property
    def all_coordinators(self) -> str:
        return f"{self.prefix}coordinators/"

    def participants(self, global_id: GlobalId) -> str:
        return f"{self.all_participants}{global_id.hex()}"

    def decision(self, global_id: GlobalId) -> str:
        """Value: a `Verdict`."""
        return f"{self.all_decisions}{global_id.hex()}"

    def coordinator(self, process: Incarnation) -> str:
        """Presence of a coordinator, under its lease."""
        return f"{self.all_coordinators}{process}"

    def outcome(self, global_id: GlobalId) -> str:
        """Under a lease that ends with the retention. Not below `prefix`: there are many, and no recoverer wants them."""
        return f"/lockstep-outcomes/{self.cluster}/{global_id.hex()}"

    @property
    def all_heuristics(self) -> str:
        return f"/lockstep-heuristics/{self.cluster}/"

    def heuristic(self, global_id: GlobalId) -> str:
        """The same value as the outcome's, which has no lease as long as this is there: what operators have to see."""
        return f"{self.all_heuristics}{global_id.hex()}"

    def global_id(self, key: str) -> GlobalId:
        """Of a participants or decision key; raises `ValueError` for another."""
        return parse_global_id(key.rpartition("/")[2])


def _encode(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
