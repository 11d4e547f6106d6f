"""Sources and targets as clients send them (AMQP 1.0, 3.5): what the proxy reads of them.

Law: nothing that a client can put there raises; what is not understood counts as not there, and is not said back.
"""

from typing import Any, NamedTuple

from proton import UNDESCRIBED, Array, Data, Described, Link, Terminus, symbol, ulong

from services.proxy.core.addresses import NODE_CAPABILITIES
from services.proxy.engine_words import UNREADABLE

SELECTOR_NAMES = ("apache.org:selector-filter:string", 0x0000_468C_0000_0004)
KEY_NAMES = (
    "apache.org:legacy-amqp-topic-binding:string",
    0x0000_468C_0000_0001,
    "apache.org:legacy-amqp-direct-binding:string",
    0x0000_468C_0000_0000,
)
_DELETE_ON_CLOSE = ulong(0x2B)
"""Of a dynamic node: it ends with its link."""
COORDINATOR_CAPABILITIES = Array(
    UNDESCRIBED,  # type: ignore[arg-type]
    Data.SYMBOL,
    *map(
        symbol,
        (
            "amqp:local-transactions",
            "amqp:distributed-transactions",
            "amqp:multi-txns-per-ssn",
            "amqp:multi-ssns-per-txn",
        ),
    ),
)
"""What the coordinator can do (4.5.1)."""


class Filters(NamedTuple):
    """What of a source's filter set is applied."""

    selector: str = ""
    key: str | None = None
    """A routing key for a subscription, instead of the address's."""
    applied: dict[Any, Any] = {}  # noqa: RUF012
    """As it came: what the attach says back."""


def capabilities_of(terminus: Terminus) -> frozenset[str]:
    """Its capabilities."""
    return symbols_in(_object(terminus.capabilities))


def symbols_in(value: Any) -> frozenset[str]:
    """The symbols of a field that may have one or many."""
    if isinstance(value, Array):
        value = list(value.elements)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return frozenset()
    return frozenset(str(one) for one in value if isinstance(one, str))


def filters_of(source: Terminus) -> Filters:
    """Its filters; of two of one kind the last counts."""
    found = _object(source.filter)
    if not isinstance(found, dict):
        return Filters()
    selector, key, applied = "", None, {}
    for name, value in found.items():
        if not isinstance(value, Described) or not isinstance(value.value, str):
            continue
        if value.descriptor in SELECTOR_NAMES:
            selector = str(value.value)
        elif value.descriptor in KEY_NAMES:
            key = str(value.value)
        else:
            continue
        applied[symbol(str(name))] = value
    return Filters(selector, key, applied)


def _object(data: Data) -> Any:
    try:
        data.rewind()
        return data.get_object() if data.next() else None
    except UNREADABLE:
        return None


def say_back(ours: Terminus, theirs: Terminus) -> None:
    """Copies a terminus, but for what the engine can decode and not encode again: it would crash when it sends that."""
    ours.copy(theirs)
    for data in (ours.properties, ours.capabilities, ours.outcomes, ours.filter):
        try:
            data.encode()
        except UNREADABLE:
            data.clear()


def answer_source(link: Link, applied: dict[Any, Any], address: str | None = None) -> None:
    """Says the source back, with the filters that are applied and the address that was given to a dynamic one."""
    say_back(link.source, link.remote_source)
    say_back(link.target, link.remote_target)
    filters = link.source.filter
    filters.clear()
    if applied:
        filters.put_object(applied)
    _say_node(link.source, address)


def answer_target(link: Link, address: str | None = None) -> None:
    """The same for a target."""
    say_back(link.source, link.remote_source)
    say_back(link.target, link.remote_target)
    _say_node(link.target, address)


def _say_node(ours: Terminus, address: str | None) -> None:
    """Of what was asked of a node no more than it is; and how long a dynamic one, which has this address now, lives (3.5.10).
    Nothing is kept of a link that is detached.
    """
    ours.durability = Terminus.NONDURABLE
    ours.expiry_policy = Terminus.EXPIRE_WITH_LINK
    ours.timeout = 0
    known = sorted(capabilities_of(ours) & NODE_CAPABILITIES)
    ours.capabilities.clear()
    if known:
        ours.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, known)))  # type: ignore[arg-type]
    ours.properties.clear()
    if address is not None:
        ours.address = address
        ours.properties.put_object({symbol("lifetime-policy"): Described(_DELETE_ON_CLOSE, [])})


def answer_coordinator(link: Link) -> None:
    """The same for a link to the transaction coordinator, with what that can do."""
    answer_target(link)
    link.target.capabilities.clear()
    link.target.capabilities.put_object(COORDINATOR_CAPABILITIES)
