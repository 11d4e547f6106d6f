"""The contract's rig on a cluster of real processes: the installed client, SIGKILL, a real etcd.

Each row has queues and xids of its own, so that one cluster serves many rows.
"""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from lockstep.client.client import Client, connect
from lockstep.client.consumer import Message
from lockstep.client.resource_manager import Branch, ResourceManager, XaError
from lockstep.client.session import Session
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from tests.conformance.rig import FORMAT_ID, OTHER_CODES, Answer, Rig
from tests.integration.cluster import Deployment

SET = "east"
_Result = TypeVar("_Result")
_rows = itertools.count(1)


class BackgroundLoop:
    """An event loop in a thread: rows are plain functions, and the client's heartbeats go on between their steps."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=120)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


class ProcessRig(Rig):
    """`kill_before`: as in the simulated rig."""

    def __init__(self, loop: BackgroundLoop, deployment: Deployment, kill_before: int = 0) -> None:
        super().__init__()
        self._loop = loop
        self._deployment = deployment
        self._kill_before = kill_before
        self._row = next(_rows)
        self.steps = 0
        self._sessions: dict[str, tuple[Session, ResourceManager]] = {}
        self._branches: dict[bytes, Branch] = {}
        self._client: Client = loop.run(connect(deployment.addresses))
        self._admin: Session = self._client.session()
        self._loop.run(self._admin.declare_queue(self._queue("q"), set_name=SET))

    def _queue(self, name: str) -> str:
        return f"{name}{self._row}"

    def xid(self) -> bytes:
        return Xid(FORMAT_ID, b"row %d" % self._row, Xid.decode(super().xid()).branch_id).encode()

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._kill_before:
            self._loop.run(self._kill())

    async def _kill(self) -> None:
        deployment = self._deployment
        for name, local in deployment.cluster.brokers.items():
            if not local.broker.is_running:
                await deployment.cluster.start_broker(name)
        await deployment.until_in_sync()
        primary = await deployment.primary_of(SET)
        await deployment[primary].broker.kill()
        await deployment.primary_of(SET)

    def _verb(self, session: str, call: Callable[[ResourceManager], Awaitable[XaStatus]]) -> Answer:
        self._step()
        return self._loop.run(_answer(call(self._sessions[session][1])))

    # --- sessions and messages ---

    def session(self, name: str = "s1", dtx: bool = True, hears_read_only: bool = False) -> str:
        self._step()
        session = self._client.session()

        async def opened() -> ResourceManager:
            manager = await session.resource_manager(SET)
            if dtx:
                await manager.select(hears_read_only=hears_read_only)
            return manager

        self._sessions[name] = session, self._loop.run(opened())
        return name

    def close(self, session: str) -> None:
        self._step()
        self._loop.run(self._sessions.pop(session)[0].close())

    def publish(
        self,
        session: str,
        queue: str,
        bodies: Sequence[bytes],
        xid: bytes | None = None,
        durable: bool = True,
    ) -> None:
        self._step()

        async def published() -> None:
            name = self._queue(queue)
            if xid is None:
                await self._sessions[session][0].publish(name, bodies, durable=durable)
            else:
                # Somebody joins a branch in a session of its own: the work is named by the branch, the session does it.
                branch = self._branches[session.encode() + xid]
                await branch.publish(name, bodies, durable=durable)

        self._loop.run(published())

    def take(
        self, session: str, queue: str, number: int, xid: bytes | None = None
    ) -> list[tuple[bytes, int]]:
        self._step()

        async def taken() -> list[tuple[bytes, int]]:
            found: list[Message] = []
            async with await self._sessions[session][0].consume(
                self._queue(queue), credit=number
            ) as consumer:
                for _ in range(number):
                    message = await consumer.next(30)
                    assert message is not None, f"only {len(found)} of {number} messages"
                    found.append(message)
                branch = self._branches[session.encode() + xid] if xid is not None else None
                for message in found:
                    await (branch.accept(message) if branch is not None else message.accept())
            return [(message.body, message.delivery_count) for message in found]

        return self._loop.run(taken())

    def bodies(self, queue: str) -> list[bytes]:
        async def browsed() -> list[bytes]:
            return [message.body async for message in self._admin.browse(self._queue(queue))]

        return self._loop.run(browsed())

    def free(self, queue: str) -> int:
        described = self._loop.run(self._admin.describe(SET))
        (found,) = [each for each in described.queues if each.name == self._queue(queue)]
        return found.length - found.held

    # --- verbs ---

    def start(self, session: str, xid: bytes, *, join: bool = False, resume: bool = False) -> Answer:
        async def started(manager: ResourceManager) -> XaStatus:
            branch = await manager.start(_Raw(xid), join=join, resume=resume)
            self._branches[session.encode() + xid] = branch
            return XaStatus.OK

        return self._verb(session, started)

    def end(self, session: str, xid: bytes, *, fail: bool = False, suspend: bool = False) -> Answer:
        return self._verb(session, lambda manager: manager.end(_Raw(xid), fail=fail, suspend=suspend))

    def prepare(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, lambda manager: manager.prepare(_Raw(xid)))

    def commit(
        self, session: str, xid: bytes, *, one_phase: bool = False, lose_answer: bool = False
    ) -> Answer:
        assert not lose_answer, "rows that lose an answer are played on the simulated cluster"
        return self._verb(session, lambda manager: manager.commit(_Raw(xid), one_phase=one_phase))

    def rollback(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, lambda manager: manager.rollback(_Raw(xid)))

    def forget(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, lambda manager: manager.forget(_Raw(xid)))

    def end_heuristically(self, session: str, xid: bytes, commit: bool) -> Answer:
        return self._verb(session, lambda manager: manager.end_heuristically(_Raw(xid), commit=commit))

    def set_timeout(self, session: str, xid: bytes, seconds: int) -> Answer:
        return self._verb(session, lambda manager: manager.set_timeout(_Raw(xid), seconds))

    def get_timeout(self, session: str, xid: bytes) -> Answer | str:
        self._step()
        try:
            return f"{self._loop.run(self._sessions[session][1].get_timeout(_Raw(xid))):g} s"
        except XaError as error:
            return error.exception

    def recover(self, session: str) -> list[bytes]:
        self._step()
        found = self._loop.run(self._sessions[session][1].recover())
        mine = b"row %d" % self._row
        return [branch.xid for branch in found if Xid.decode(branch.xid).global_id == mine]

    # --- what happens ---

    def pass_time(self, seconds: float) -> None:
        self._step()
        self._loop.run(asyncio.sleep(seconds))

    def kill_primary(self) -> None:
        self._step()
        self._loop.run(self._kill())

    def restart_all(self) -> None:
        self._step()

        async def restarted() -> None:
            cluster = self._deployment.cluster
            for local in cluster.brokers.values():
                if local.broker.is_running:
                    await local.broker.kill()
                await local.store.kill()
            for name in cluster.brokers:
                await cluster.start_store(name)
            for name in cluster.brokers:
                await cluster.start_broker(name)
            await self._deployment.primary_of(SET)

        self._loop.run(restarted())

    def refuse(self, xid: bytes) -> None:
        raise AssertionError("rows with a refusal are played on the simulated cluster")

    def finish(self) -> None:
        """Complete what the row left."""
        self._kill_before = 0
        for name in list(self._sessions):
            self.close(name)
        self.session("last", dtx=False)
        manager = self._sessions["last"][1]
        mine = b"row %d" % self._row
        for branch in self._loop.run(manager.recover(with_open=True)):
            if Xid.decode(branch.xid).global_id == mine:
                self.rollback("last", branch.xid)
                self.forget("last", branch.xid)
        assert self.recover("last") == []
        self.close("last")
        self._loop.run(self._client.close())


class _Raw(Xid):
    """An xid as the row has it, well-formed or not."""

    __slots__ = ()

    def __new__(cls, encoded: bytes) -> "_Raw":
        return super().__new__(cls, 0, encoded, b"")

    def encode(self) -> bytes:
        return self.global_id


async def _answer(verb: Awaitable[XaStatus]) -> Answer:
    try:
        return await verb
    except XaError as error:
        return error.exception or OTHER_CODES + error.code
