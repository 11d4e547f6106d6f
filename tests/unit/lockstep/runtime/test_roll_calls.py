"""Roll calls in etcd whose answers are lost, or which nobody waits for any more."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import LogView
from lockstep.core.ids import BrokerId
from lockstep.core.roll_call import RollCall
from lockstep.core.stamps import NO_STAMPS, Stamps
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_values import Compare, Operation, TransactionResult
from lockstep.runtime.roll_calls import RollCalls
from tests.unit.services.etcd_in_memory import EtcdInMemory

KEY = Keys("c").stamps
BACKUP = NO_STAMPS.answered(BrokerId("b"), "b/1")


class Hanging(EtcdInMemory):
    """Executes what it is asked, and does not answer."""

    hangs = False

    async def transact(
        self,
        compares: Sequence[Compare],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> TransactionResult:
        result = await super().transact(compares, on_success, on_failure)
        if self.hangs:
            await asyncio.Event().wait()
        return result


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_call_behind_one_in_doubt_does_not_hide_it(is_given_up: bool) -> None:
    """Others have seen the first one; then etcd was set back to right before it."""
    etcd = Hanging()
    calls = RollCalls(cast(EtcdClient, etcd), "c", RollCall("p"), lambda: 0)
    etcd.put(KEY, BACKUP.encode())
    if is_given_up:
        etcd.hangs = True
        task = asyncio.ensure_future(_call(etcd, calls))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        etcd.hangs = False
    else:
        etcd.delays_next_of = KEY
        await _call(etcd, calls)
        assert etcd.execute_delayed() == [True]
    lost = _stamps(etcd)
    assert lost.silent
    etcd.put(KEY, BACKUP.encode())
    await _call(etcd, calls)
    assert _stamps(etcd).silent and _stamps(etcd).lacks(lost.newest)


async def _call(etcd: EtcdInMemory, calls: RollCalls) -> None:
    read = etcd.entries[KEY]
    view = LogView(
        stamps=BACKUP, stamps_revision=read.mod_revision, stamps_value=read.value, revision=etcd.revision
    )
    await calls.call(view)


def _stamps(etcd: EtcdInMemory) -> Stamps:
    return Stamps.decode(etcd.entries[KEY].value)
