"""Checkers of the promises P1 to P8 (DESIGN 1): each reads a `Record` and yields a sentence for everything it finds broken."""

from collections.abc import Callable, Iterator

from tests.simulation.checkers import (
    chosen,
    events,
    handed_on,
    in_order,
    one_outcome,
    owed,
    p1_atomic,
    p2_consistent,
    p3_isolated,
    p4_durable,
    p5_recoverable,
    p6_known_outcome,
    p7_live,
    p8_fenced,
)
from tests.simulation.checkers.record import Record

CHECKERS: dict[str, Callable[[Record], Iterator[str]]] = {
    "P1": p1_atomic.check,
    "P2": p2_consistent.check,
    "P3": p3_isolated.check,
    "P4": p4_durable.check,
    "P5": p5_recoverable.check,
    "P6": p6_known_outcome.check,
    "P7": p7_live.check,
    "P8": p8_fenced.check,
    "T3, T4": one_outcome.check,
    "T6, T8": handed_on.check,
    "AMQP 1.0, 3.5.3": chosen.check,
    "AMQP 1.0, 3.2.1": in_order.check,
    "DESIGN 7": events.check,
    "DESIGN 5": owed.check,
}
"""Promise, rule of transactions, or section of AMQP -> its checker."""
