"""Names of containers, while those who claim them come and go."""

import asyncio
import logging
from typing import cast

import pytest

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.runtime.limit_log import LimitLog
from services.proxy.containers import PAUSE_SECONDS, Containers
from services.proxy.nodes import Nodes


class Cluster:
    """The queues that stand for names; a declare is answered when the test says so."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.answers: list[asyncio.Future[None]] = []

    async def declare_own_queue(self, name: str) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        await answer
        self.queues.add(name)

    async def delete_queue(self, name: str) -> None:
        await asyncio.sleep(0.02)
        self.queues.discard(name)


class Rig:
    def __init__(self, wait_seconds: float = 5.0) -> None:
        self.cluster = Cluster()
        self.tasks: list[asyncio.Task[None]] = []
        log = LimitLog(logging.getLogger("lockstep.proxy"))
        self.containers = Containers(cast(Nodes, self.cluster), wait_seconds, self.tasks.append, log)

    async def asked(self, declares: int) -> asyncio.Future[None]:
        """So many declares have been asked for; the last one."""
        while len(self.cluster.answers) < declares:
            await asyncio.sleep(0.01)
        return self.cluster.answers[declares - 1]


async def test_who_claims_a_name_behind_somebody_who_left_while_he_claimed_it_keeps_it() -> None:
    rig = Rig()
    left, comes = object(), object()
    first = asyncio.ensure_future(rig.containers.claim("name", left))
    answer = await rig.asked(1)
    rig.containers.release("name", left)
    second = asyncio.ensure_future(rig.containers.claim("name", comes))
    await asyncio.sleep(PAUSE_SECONDS + 0.1)
    answer.set_result(None)
    (await rig.asked(2)).set_result(None)
    assert [await first, await second] == [False, True]
    await asyncio.gather(*rig.tasks)
    assert len(rig.cluster.queues) == 1
    rig.containers.release("name", comes)
    await asyncio.gather(*rig.tasks)
    assert rig.cluster.queues == set()


@pytest.mark.parametrize("has_left", [True, False])
async def test_a_name_that_another_proxy_has_is_free_here_for_the_next(has_left: bool) -> None:
    rig = Rig(wait_seconds=0.0)
    owner = object()
    claim = asyncio.ensure_future(rig.containers.claim("name", owner))
    answer = await rig.asked(1)
    if has_left:
        rig.containers.release("name", owner)
    answer.set_exception(Rejected(ErrorCode.LOCKED, "another session has it"))
    assert await claim is False
    assert not rig.tasks
    again = asyncio.ensure_future(rig.containers.claim("name", owner))
    (await rig.asked(2)).set_result(None)
    assert await again is True


async def test_a_claim_in_doubt_whose_owner_left_is_released() -> None:
    rig = Rig()
    owner = object()
    claim = asyncio.ensure_future(rig.containers.claim("name", owner))
    answer = await rig.asked(1)
    rig.containers.release("name", owner)
    answer.set_exception(InDoubt(ErrorCode.UNAVAILABLE, "no answer"))
    with pytest.raises(InDoubt):
        await claim
    await asyncio.gather(*rig.tasks)
    assert len(rig.tasks) == 1
