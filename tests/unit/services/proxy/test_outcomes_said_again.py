"""A delivery whose client says another outcome than it has said: the first stands, and no transaction commits without its own."""

from typing import cast

import pytest
from proton import Delivery

from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import QueuePosition
from services.proxy.amqp_transaction import AmqpTransaction, Work
from services.proxy.engine_words import StateCode
from tests.unit.services.proxy.outgoing_rig import RecordedWork, Rig, say_in_transaction

OTHER = b"other"


def begin_other(rig: Rig) -> AmqpTransaction:
    work = RecordedWork(rig.broker)
    rig.transactions[OTHER] = AmqpTransaction(OTHER, cast(Work, work), 0)
    return rig.transactions[OTHER]


async def commit_is_refused(transaction: AmqpTransaction) -> None:
    with pytest.raises(Rejected, match="has an outcome already") as refused:
        await transaction.commit()
    assert refused.value.code is ErrorCode.ROLLED_BACK


async def confirmed(rig: Rig, *transactions: AmqpTransaction) -> None:
    """What was handed in has happened."""
    for transaction in transactions:
        await transaction._finish_steps()
    for confirmation in rig.broker.confirmations:
        if not confirmation.done():
            confirmation.set_result(1)


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("outcome", [StateCode.ACCEPTED, StateCode.RELEASED])
async def test_second_of_two_transactions_that_name_one_delivery_cannot_commit(
    outcome: StateCode, is_settled: bool
) -> None:
    rig = Rig()
    first, second = rig.begin(), begin_other(rig)
    delivery = rig.deliver()
    say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    say_in_transaction(delivery, outcome, name=OTHER)
    if is_settled:
        delivery.settle()
    rig.exchange()
    await confirmed(rig, first)
    await commit_is_refused(second)
    await first.commit()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


async def test_transaction_that_names_what_was_accepted_outside_cannot_commit() -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    delivery.update(Delivery.ACCEPTED)
    rig.exchange()
    say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    await commit_is_refused(transaction)
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]


@pytest.mark.parametrize("is_in_it", [False, True])
async def test_transaction_cannot_commit_when_another_outcome_takes_the_place_of_the_one_in_it(
    is_in_it: bool,
) -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    say_in_transaction(delivery, StateCode.ACCEPTED)
    rig.exchange()
    if is_in_it:
        say_in_transaction(delivery, StateCode.RELEASED)
    else:
        delivery.update(Delivery.RELEASED)
    rig.exchange()
    await confirmed(rig, transaction)
    await commit_is_refused(transaction)


@pytest.mark.parametrize("is_settled", [False, True])
async def test_outcome_that_is_said_twice_is_one(is_settled: bool) -> None:
    rig = Rig()
    transaction = rig.begin()
    delivery = rig.deliver()
    for _ in range(2):
        say_in_transaction(delivery, StateCode.ACCEPTED)
        rig.exchange()
    say_in_transaction(delivery, None)
    if is_settled:
        delivery.settle()
    rig.exchange()
    await confirmed(rig, transaction)
    await transaction.commit()
    assert rig.broker.settled == [((QueuePosition(1),), Disposition.ACCEPT)]
