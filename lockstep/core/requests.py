"""Requests: what a client says on a session stream beside its commands (DESIGN 6).

Law: requests have no number and change nothing that is replicated, but for the session's own opening and end.
"""

from enum import Enum

import msgspec

from lockstep.core.commands import AnyCommand
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SessionId, SessionKey, SetName, TransactionKey
from lockstep.core.records import Begins


class HeldDeliveries(msgspec.Struct, frozen=True):
    """Messages that a client has received from one queue in one epoch and that no answered command has settled."""

    queue: str
    epoch: Epoch
    positions: tuple[QueuePosition, ...]


class UnansweredSettle(msgspec.Struct, frozen=True):
    """What a settle names that is not answered, by its command number: positions that the client does not have in hand."""

    number: int
    queue: str
    positions: tuple[QueuePosition, ...]


class AttachSession(msgspec.Struct, frozen=True):
    """First message of a stream: open a session in this set (`session` 0), or resume the one opened by that (index, epoch).

    `session` 0 with the id of a session that exists resumes it: the answer to its opening was lost, no command was ever sent.
    Consumers end with their stream; the client opens them again, with the credit that is left.
    """

    set_name: SetName
    session_id: SessionId
    session: SessionKey
    session_epoch: Epoch
    timeout_ms: int
    heard: int
    """All answers up to this command number have arrived; later ones are sent again."""
    held: tuple[HeldDeliveries, ...] = ()
    """What the client has in hand, and what settles without an answer name: a rejected one gives it back. What the primary thinks
    the session holds beyond it got lost with the last stream and is released, as if never delivered."""
    outlives_hand_over: bool = False
    """Where the set is handed over, the client goes on with what it has open and in hand (T8)."""
    settling: tuple[UnansweredSettle, ...] = ()
    """Settles without an answer, in order. What one that has succeeded has settled (of one that is partial, its first positions),
    and the session holds, was delivered again behind it, and lost. Empty: of what is `held`, the client has all in hand, or may
    get it back."""


class DetachSession(msgspec.Struct, frozen=True):
    """The client is done: the session ends, its open transactions are rolled back."""


class OpenConsumer(msgspec.Struct, frozen=True):
    """Deliver messages of a queue, at most `credit` beyond those granted before. `consumer`: a number of the client's choice."""

    consumer: int
    queue: str
    credit: int
    is_exclusive: bool = False
    selector: str = ""
    """Only messages that match it, in the queue's order; others are left to others. "": all."""
    is_browser: bool = False
    """Copies of what is in the queue, whoever has it, as a `Browse` shows it; nothing is taken or held. It goes on with what
    arrives later."""
    after: QueuePosition = QueuePosition(0)
    """A browser is shown what is behind this position; 0: from the head."""


class GrantCredit(msgspec.Struct, frozen=True):
    consumer: int
    credit: int


class DrainConsumer(msgspec.Struct, frozen=True):
    """Deliver what can be delivered within the credit, and take back the rest of it (AMQP 1.0, 2.6.7). Answered by
    `ConsumerDrained`, once for each, behind those deliveries; everything said before it has taken effect by then.
    """

    consumer: int


class CloseConsumer(msgspec.Struct, frozen=True):
    """No more deliveries; what the session holds stays held until it is settled or the session ends."""

    consumer: int


class Browse(msgspec.Struct, frozen=True):
    """Read a queue without taking anything: up to `limit` messages behind position `after` (0: from the head)."""

    request: int
    queue: str
    after: QueuePosition
    limit: int


class GetOutcome(msgspec.Struct, frozen=True):
    """What became of a transaction (DESIGN T5). With `fence` an open one is rolled back first, if whoever asks works in it: names
    of transactions can be guessed. To others it is open.
    """

    request: int
    transaction: TransactionKey
    fence: bool
    sessions: tuple[SessionId, ...] = ()
    """Ids of sessions that he has, beside the one that asks: nobody else knows them."""
    is_permitted: bool = False
    """Not on the wire: his broker has seen the secret that the transaction's caller was given."""


class Describe(msgspec.Struct, frozen=True):
    """Exchanges, queues, transactions and figures of the set, for `status` and people. Answered by `Description`."""

    request: int
    with_state_hash: bool = False
    """It costs some microseconds for every message in the set."""
    page_size: int = 0
    """Queues and exchanges in the answer, at most; 0: as many as the set allows."""
    page_token: int = 0
    """Of the page before; 0: the first."""


class DescribeQueue(msgspec.Struct, frozen=True):
    """What is declared of a queue, and what is bound to it. Answered by `QueueDetails`."""

    request: int
    queue: str


class DescribeExchange(msgspec.Struct, frozen=True):
    """What is declared of an exchange. Answered by `ExchangeDetails`."""

    request: int
    exchange: str


class Recover(msgspec.Struct, frozen=True):
    """Branches that are prepared or were ended heuristically, by xid behind `after` (b"": from the first), up to `limit`.

    With `with_open` the open ones too, for people. Answered by `Recovered`.
    """

    request: int
    after: bytes
    limit: int
    with_open: bool = False


class GetTimeout(msgspec.Struct, frozen=True):
    """The time-out of a branch. Answered by `TimeoutAnswer`."""

    request: int
    xid: bytes


class Heartbeat(msgspec.Struct, frozen=True):
    """The client lives. Answered at once by `HeartbeatAnswered`, before the session is attached too."""


Question = Browse | GetOutcome | Describe | DescribeQueue | DescribeExchange | Recover | GetTimeout
"""Requests that are answered by one message with their number."""
AnyRequest = (
    AttachSession
    | DetachSession
    | OpenConsumer
    | GrantCredit
    | DrainConsumer
    | CloseConsumer
    | Browse
    | GetOutcome
    | Describe
    | DescribeQueue
    | DescribeExchange
    | Recover
    | GetTimeout
    | Heartbeat
)
ClientMessage = AnyCommand | AnyRequest


# --- asked by a broker of its own replica, never on the wire --------------------------------------------------------------


class SubscriptionChange(Enum):
    NONE = 0
    """Only tell which there are."""
    OPEN = 1
    START = 2
    """The group begins at `floor`, unless it has begun; below where it was opened, too."""
    ADVANCE = 3
    CLOSE = 4


class ChangeSubscription(msgspec.Struct, frozen=True):
    """Change a group of readers of committed events. Answered by `SubscriptionsAnswer`."""

    request: int
    group: str
    change: SubscriptionChange
    floor: LogIndex | None = None
    """START, ADVANCE: done with everything at or below it. OPEN: begin behind it; None: at the log's end."""
    is_earliest: bool = False
    """OPEN: begin where the group begins that is owed most."""
    epoch: Epoch | None = None
    """START, ADVANCE: of the record at `floor`, as its reader knows it; None: it is not compared."""
    is_left_behind: bool = False
    """CLOSE: the group stays, as one that was left behind."""
    begins: Begins = ()
    """START, in the set that decides where the group begins in all."""


class FindBranches(msgspec.Struct, frozen=True):
    """How the branches that these transactions have in this set stand; a transaction is named by the xid of any branch of it. No
    transaction: which branches are prepared. Answered by `BranchesFound`.
    """

    request: int
    xids: tuple[bytes, ...]


BrokerRequest = ChangeSubscription | FindBranches
Heard = ClientMessage | BrokerRequest
"""What a replica hears on a client's stream."""
