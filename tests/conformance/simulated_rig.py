"""The contract's rig on a simulated cluster: the real cores on a virtual clock, with the primary killed before a chosen step."""

from collections.abc import Sequence
from functools import partial

from lockstep.core.commands import (
    AnyCommand,
    CommitBranchCommand,
    EndCommand,
    EndHeuristicallyCommand,
    ForgetBranchCommand,
    OutgoingMessage,
    PrepareBranchCommand,
    PublishCommand,
    RollbackBranchCommand,
    SelectDtxCommand,
    SetTimeoutCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import BrokerId, TransactionKey
from lockstep.core.requests import Describe, GetTimeout, Recover
from lockstep.core.server_messages import Answers, Description, Recovered, TimeoutAnswer
from lockstep.core.tx_buffer import DtxBuffer
from lockstep.core.xa import XaStatus
from services.primary.core.primary import PrimaryCore
from tests.conformance.rig import Answer, Rig, answer_of
from tests.simulation.history import Operation
from tests.simulation.staging.moments import answers_client
from tests.simulation.staging.refusals import refuse
from tests.simulation.staging.scripted_client import ScriptedClient
from tests.simulation.staging.stage import Stage, calm

PAGE = 2
"""Branches in one answer to recover: small, so that every scan has several pages."""


class SimulatedRig(Rig):
    """`kill_before`: the primary is killed before the row's step of that number (from 1), which then meets its successor."""

    def __init__(self, brokers: int = 3, kill_before: int = 0) -> None:
        super().__init__()
        self._kill_before = kill_before
        self.steps = 0
        self.open_at: list[bool] = []
        """Whether a branch was open (started, not prepared) when each step came."""
        self.stage = Stage(options=calm(brokers=brokers, min_in_sync=min(brokers, 2)))
        self.stage.start()
        self._clients: dict[str, ScriptedClient] = {}
        self._keys: dict[bytes, TransactionKey] = {}
        self._admin = self.stage.client("admin")
        self._admin.declare("q")

    # --- steps ---

    def _step(self) -> None:
        self.steps += 1
        primary = self._primary()[1]
        transactions = primary.context.state.transactions
        self.open_at.append(any(isinstance(buffer, DtxBuffer) for buffer in transactions.open()))
        if self.steps == self._kill_before:
            self._kill_primary()

    def _kill_primary(self) -> None:
        self.stage.revive(*self.stage.world.broker_ids)
        self.stage.whole()
        broker = self._primary()[0]
        self.stage.kill(broker)
        if len(self.stage.world.broker_ids) == 1:
            self.stage.revive(broker)
        self._primary()

    def _primary(self) -> tuple[BrokerId, PrimaryCore]:
        """The broker that serves, waited for."""
        stage = self.stage

        def serving() -> list[tuple[BrokerId, PrimaryCore]]:
            cores = [(broker, stage.primary_core(broker)) for broker in stage.world.broker_ids]
            return [
                (broker, core)
                for broker, core in cores
                if core is not None and core.is_serving and core.epoch == stage.epoch
            ]

        stage.until(lambda: bool(serving()), 30.0, "a primary")
        return serving()[0]

    def _do(self, session: str, command: AnyCommand) -> Operation:
        return self.stage.done(self._clients[session].session.submit(command))

    def _verb(self, session: str, command: AnyCommand) -> Answer:
        self._step()
        operation = self._do(session, command)
        assert operation.code is not None, operation
        return answer_of(operation.code, operation.value)

    # --- sessions and messages ---

    def session(self, name: str = "s1", dtx: bool = True, hears_read_only: bool = False) -> str:
        self._step()
        self._clients[name] = self.stage.client(name)
        if dtx:
            assert self._do(name, SelectDtxCommand(0, hears_read_only)).is_ok
        return name

    def close(self, session: str) -> None:
        self._step()
        self._clients[session].close()

    def publish(
        self,
        session: str,
        queue: str,
        bodies: Sequence[bytes],
        xid: bytes | None = None,
        durable: bool = True,
    ) -> None:
        self._step()
        messages = tuple(OutgoingMessage(b"", body, durable) for body in bodies)
        key = self._keys[xid] if xid is not None else None
        operation = self._do(session, PublishCommand(0, "", queue, messages, key))
        assert operation.is_ok or key is not None, operation

    def take(
        self, session: str, queue: str, number: int, xid: bytes | None = None
    ) -> list[tuple[bytes, int]]:
        self._step()
        client = self._clients[session]
        taken = client.take(queue, number)
        key = self._keys[xid] if xid is not None else None
        assert self.stage.done(client.settle(queue, taken, key)).is_ok
        return [(message.body, message.delivery_count) for _, message in taken]

    def bodies(self, queue: str) -> list[bytes]:
        return self._admin.browse(queue)

    def free(self, queue: str) -> int:
        described = self._admin.answer(lambda: self._admin.session.ask(Describe(0)))
        assert isinstance(described, Description), described
        (found,) = [each for each in described.queues if each.name == queue]
        return found.length - found.held

    # --- verbs ---

    def start(self, session: str, xid: bytes, *, join: bool = False, resume: bool = False) -> Answer:
        self._step()
        operation = self._do(session, StartCommand(0, xid, join, resume))
        assert operation.code is not None, operation
        if operation.code is not ErrorCode.NONE:
            return answer_of(operation.code, operation.value)
        assert operation.transaction is not None
        self._keys[xid] = operation.transaction
        return XaStatus.OK

    def end(self, session: str, xid: bytes, *, fail: bool = False, suspend: bool = False) -> Answer:
        return self._verb(session, EndCommand(0, xid, 0, fail, suspend))

    def prepare(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, PrepareBranchCommand(0, xid))

    def commit(
        self, session: str, xid: bytes, *, one_phase: bool = False, lose_answer: bool = False
    ) -> Answer:
        command = CommitBranchCommand(0, xid, one_phase)
        if not lose_answer:
            return self._verb(session, command)
        self._step()
        client = self._clients[session].session
        self.stage.when(answers_client(self._primary()[0], Answers), client.break_off)
        operation = self._do(session, command)
        assert operation.code is not None, operation
        return answer_of(operation.code, operation.value)

    def rollback(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, RollbackBranchCommand(0, xid))

    def forget(self, session: str, xid: bytes) -> Answer:
        return self._verb(session, ForgetBranchCommand(0, xid))

    def end_heuristically(self, session: str, xid: bytes, commit: bool) -> Answer:
        return self._verb(session, EndHeuristicallyCommand(0, xid, commit))

    def set_timeout(self, session: str, xid: bytes, seconds: int) -> Answer:
        return self._verb(session, SetTimeoutCommand(0, xid, seconds * 1000))

    def get_timeout(self, session: str, xid: bytes) -> Answer | str:
        self._step()
        client = self._clients[session]
        answer = client.answer(lambda: client.session.ask(GetTimeout(0, xid)))
        assert isinstance(answer, TimeoutAnswer), answer
        return answer_of(answer.code, 0) if answer.code else f"{answer.timeout_ms // 1000} s"

    def recover(self, session: str) -> list[bytes]:
        self._step()
        client, found = self._clients[session], list[bytes]()
        while True:
            question = Recover(0, found[-1] if found else b"", PAGE)
            answer = client.answer(partial(client.session.ask, question))
            assert isinstance(answer, Recovered), answer
            found += [branch.xid for branch in answer.branches]
            if answer.is_end:
                return found

    # --- what happens ---

    def pass_time(self, seconds: float) -> None:
        self._step()
        self.stage.run(seconds)

    def kill_primary(self) -> None:
        self._step()
        self._kill_primary()

    def restart_all(self) -> None:
        self._step()
        brokers = self.stage.world.broker_ids
        for broker in brokers:
            self.stage.kill(broker)
            self.stage.kill_store(broker)
        self.stage.revive(*brokers)
        self._primary()

    def refuse(self, xid: bytes) -> None:
        self._step()
        primary = self._primary()[0]
        refuse(
            self.stage, next(broker for broker in self.stage.in_sync if broker != primary), self._keys[xid]
        )
        self.stage.run(0.1)

    def finish(self) -> None:
        """Complete what the row left, then heal, rest, and ask all checkers."""
        self._kill_before = 0
        for client in self._clients.values():
            if not client.session.is_closed:
                client.close()
        last = self._clients["last"] = self.stage.client("last")
        left = last.answer(lambda: last.session.ask(Recover(0, b"", 1000, with_open=True)))
        assert isinstance(left, Recovered), left
        for branch in left.branches:
            self.rollback("last", branch.xid)
            self.forget("last", branch.xid)
        broken = self.stage.finish()
        assert not broken, broken
