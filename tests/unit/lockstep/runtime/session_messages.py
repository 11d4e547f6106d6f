"""Strategies for every message of a session stream, as hypothesis draws them."""

from dataclasses import fields
from dataclasses import replace as dataclass_replace
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.asides import PLAIN, Aside
from lockstep.core.deaths import Death
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import TransactionKey
from lockstep.runtime.wire import PIECES_BYTES_MIN

names = st.text(max_size=12)
numbers = st.integers(1, 2**63)
counts = st.integers(0, 2**63)
small = st.integers(0, 2**32 - 1)
spans = st.integers(0, 1 << 42)
keys = st.tuples(numbers, numbers)
pairs = st.lists(st.tuples(names, names), max_size=3).map(tuple)
positions = st.lists(counts, min_size=1, max_size=5, unique=True).map(tuple)
addresses = st.lists(names, max_size=3).map(tuple)
codes = st.sampled_from(ErrorCode)

bodies = st.one_of(
    *[st.binary(max_size=8)] * 3,
    st.builds(
        lambda beyond, byte: byte * (PIECES_BYTES_MIN + beyond),
        st.integers(0, 99),
        st.binary(min_size=1, max_size=1),
    ),
)
"""Some are big."""
outgoing = st.builds(
    c.OutgoingMessage,
    st.sampled_from((b"", b"p")),
    bodies,
    st.booleans(),
    st.sampled_from((0, 0, 7)),
    st.sampled_from(((), (), (("a", "b"),))),
    st.sampled_from((4, 4, 0, 9)),
)
deaths = st.lists(st.builds(Death, names, small, counts, counts, counts), max_size=2).map(tuple)
asides = st.builds(
    Aside, st.just(()) | deaths, st.sampled_from((b"", b"\xa3\x01a\x41")), st.integers(0, 9)
).filter(lambda aside: aside != PLAIN)
delivered = st.builds(
    sm.DeliveredMessage,
    counts,
    st.sampled_from((b"", b"p")),
    bodies,
    st.sampled_from((0, 3)),
    st.sampled_from((0, 9)),
    st.booleans(),
    st.none() | asides,
)
xids = st.binary(max_size=70)
branches = st.builds(
    sm.BranchDescription, xids, keys, small, counts, counts, st.lists(names, max_size=2).map(tuple)
)
options = st.builds(
    c.QueueOptions,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    counts,
    counts,
    st.booleans(),
    spans,
    st.none() | names,
    names,
    counts,
)
settles = st.builds(
    c.SettleCommand,
    numbers,
    names,
    numbers,
    positions,
    st.integers(1, 4),
    st.none(),
    st.just(0),
    small,
    st.sampled_from((b"", b"\xa3\x01a\x41")),
) | st.builds(c.SettleCommand, numbers, names, numbers, positions, st.just(1), keys, numbers)

publishes = st.builds(
    c.PublishCommand,
    numbers,
    names,
    names,
    st.lists(outgoing, min_size=1, max_size=5).map(tuple),
    st.none() | keys,
    counts,
)


def _commit(
    number: int, key: TransactionKey, operations: int, begins: int, last: c.PublishCommand | None
) -> c.CommitCommand:
    """What it brings has its number and its transaction, and is its last operation."""
    if last is not None:
        last = replace(last, number=number, transaction=key, sequence=operations)
    return c.CommitCommand(number, key, operations, begins, last)


commands = st.one_of(
    st.builds(c.DeclareExchangeCommand, numbers, names, names, st.booleans()),
    st.builds(c.DeleteExchangeCommand, numbers, names, st.booleans()),
    st.builds(c.DeclareQueueCommand, numbers, names, options),
    st.builds(c.DeleteQueueCommand, numbers, names, st.booleans(), st.booleans()),
    st.builds(c.PurgeQueueCommand, numbers, names),
    st.builds(c.BindCommand, numbers, names, names, names, pairs, st.booleans()),
    publishes,
    settles,
    st.builds(c.BeginCommand, numbers, spans),
    st.builds(_commit, numbers, keys, counts, small, st.none() | publishes),
    st.builds(c.RollbackCommand, numbers, keys),
    st.builds(c.SelectDtxCommand, numbers, st.booleans(), st.booleans()),
    st.builds(c.StartCommand, numbers, xids, st.booleans(), st.booleans(), st.none() | keys),
    st.builds(c.EndCommand, numbers, xids, counts, st.booleans(), st.booleans()),
    st.builds(c.PrepareBranchCommand, numbers, xids, st.lists(names, max_size=3).map(tuple)),
    st.builds(c.CommitBranchCommand, numbers, xids, st.booleans()),
    st.builds(c.RollbackBranchCommand, numbers, xids),
    st.builds(c.ForgetBranchCommand, numbers, xids),
    st.builds(c.SetTimeoutCommand, numbers, xids, counts),
    st.builds(c.EndHeuristicallyCommand, numbers, xids, st.booleans()),
)
requests = st.one_of(
    st.builds(
        rq.AttachSession,
        st.just("s"),
        names,
        counts,
        counts,
        spans,
        counts,
        st.lists(st.builds(rq.HeldDeliveries, names, counts, positions), max_size=2).map(tuple),
        st.booleans(),
        st.lists(st.builds(rq.UnansweredSettle, numbers, names, positions), max_size=2).map(tuple),
    ),
    st.just(rq.DetachSession()),
    st.builds(rq.OpenConsumer, small, names, small, st.booleans(), names, st.booleans(), counts),
    st.builds(rq.DrainConsumer, small),
    st.builds(rq.GrantCredit, small, small),
    st.builds(rq.CloseConsumer, small),
    st.builds(rq.Browse, small, names, counts, small),
    st.builds(rq.GetOutcome, small, keys, st.booleans()),
    st.builds(rq.Describe, small),
    st.builds(rq.DescribeQueue, small, names),
    st.builds(rq.DescribeExchange, small, names),
    st.just(rq.Heartbeat()),
    st.builds(rq.Recover, small, xids, small, st.booleans()),
    st.builds(rq.GetTimeout, small, xids),
)
client_messages = commands | requests

_numbers = st.sampled_from((-1, 0, 1, 1 << 32, 1 << 42, (1 << 42) + 1, (1 << 64) - 1, 1 << 64, 0.5, True))
_tuples = st.sampled_from(((), (0, 1), (1, 0), (4, 4), (4, 4, 5), (5, 4), (("a", "b"),), (("a", 1),)))
_anything: st.SearchStrategy[Any] = _numbers | _tuples | st.sampled_from((None, "", "a", "\ud800", b"", b"a"))
"""What a caller may hand in by mistake."""


@st.composite
def _with_anything(draw: st.DrawFn, message: Any) -> Any:
    """With one field that is anything, perhaps of what is in it."""
    name = draw(st.sampled_from(message.__struct_fields__ or ("number",)))
    if name not in message.__struct_fields__:
        return message
    value = getattr(message, name)
    match value:
        case c.QueueOptions():
            option = draw(st.sampled_from([field.name for field in fields(value)]))
            value = dataclass_replace(value, **{option: draw(_anything)})
        case c.PublishCommand():
            value = draw(_with_anything(value))
        case (c.OutgoingMessage() as first, *others):
            value = (draw(_with_anything(first)), *others) if draw(st.booleans()) else draw(_anything)
        case (rq.HeldDeliveries() as first, *others):
            value = (draw(_with_anything(first)), *others)
        case _:
            value = draw(_anything)
    return replace(message, **{name: value})


wild_client_messages: st.SearchStrategy[rq.ClientMessage] = client_messages.flatmap(_with_anything)

answers = st.builds(sm.CommandAnswered, numbers, codes, names, counts)
batches = st.lists(delivered, max_size=5).map(tuple)
queues = st.builds(sm.QueueDescription, names, counts, st.booleans(), counts, counts, counts, counts)
server_messages = st.one_of(
    st.builds(sm.SessionAttached, counts, counts, counts, counts, counts, addresses, counts),
    st.builds(sm.AttachRefused, counts, counts, codes, names, addresses),
    st.builds(sm.Answers, counts, counts, st.lists(answers, max_size=5).map(tuple)),
    st.builds(sm.PushedBack, counts, counts, numbers, codes, names),
    st.builds(sm.Deliveries, counts, counts, small, names, batches, st.booleans()),
    st.builds(sm.ConsumerDrained, counts, counts, small, small),
    st.builds(sm.ConsumerOpened, counts, counts, small),
    st.builds(sm.ConsumerClosed, counts, counts, small, codes, names),
    st.builds(sm.BrowseAnswer, counts, counts, small, codes, names, batches, st.booleans()),
    st.builds(sm.OutcomeAnswer, counts, counts, small, keys, st.integers(0, 9), st.integers(0, 9)),
    st.builds(
        sm.Description,
        counts,
        counts,
        small,
        counts,
        names,
        st.lists(queues, max_size=2).map(tuple),
        st.lists(st.tuples(names, names, st.booleans()), max_size=2).map(tuple),
        counts,
        counts,
        counts,
        counts,
    ),
    st.builds(
        sm.QueueDetails,
        counts,
        counts,
        small,
        codes,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        counts,
        small,
        st.lists(st.tuples(names, names, pairs), max_size=2).map(tuple),
    ),
    st.builds(sm.ExchangeDetails, counts, counts, small, codes, names, st.booleans()),
    st.builds(sm.Recovered, counts, counts, small, st.lists(branches, max_size=3).map(tuple), st.booleans()),
    st.builds(
        sm.TimeoutAnswer,
        counts,
        counts,
        small,
        st.sampled_from((ErrorCode.NONE, ErrorCode.NOT_FOUND)),
        counts,
    ),
    st.builds(sm.CandidatesChanged, counts, counts, addresses),
    st.builds(sm.HeartbeatAnswered, counts, counts, small, counts),
    st.builds(sm.SessionEnded, counts, counts, codes, names),
)
