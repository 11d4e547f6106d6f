"""Participants that misbehave, and an operator that is faster than the coordinator, over real processes: a broker, a coordinator,
a participant in a file.
"""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from lockstep.client.client import connect
from lockstep.client.resource_manager import ResourceManager
from lockstep.core.xa import XaStatus
from lockstep.core.xid import Xid
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from lockstep.wire.v1 import coordinator_pb2 as pb
from tests.integration.cluster import Deployment, deployed
from tests.integration.coordination import COMMITTED, ROLLED_BACK, ClientTransaction, CoordinatorClient, until
from tests.integration.coordinator_processes import Coordinators
from tests.integration.file_participant import read_states
from tests.integration.metrics import metric
from tests.integration.operators import lockstep, read

pytestmark = pytest.mark.asyncio(loop_scope="module")
IN_DOUBT = ("--in-doubt-ms", "1000")


class Rig:
    """All processes of this module."""

    def __init__(self, deployment: Deployment, directory: Path, broker_metrics: int) -> None:
        self.deployment = deployment
        self.coordinators = Coordinators(deployment)
        self.coordinator: CoordinatorClient
        self.manager: ResourceManager
        self.broker_metrics = broker_metrics
        (port, self.coordinator_metrics) = choose_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.file = directory / "file.branches"
        command = (sys.executable, "-m", "tests.integration.file_participant", self.address, str(self.file))
        self.participant = ChildProcess("participant", command, directory / "participant.log")

    async def start(self) -> None:
        await self.start_participant()
        arguments = (*IN_DOUBT, "--metrics-port", str(self.coordinator_metrics))
        self.coordinator = await self.coordinators.start(arguments=arguments)

    async def start_participant(self) -> None:
        await self.participant.start()
        await wait_for_port(self.participant, self.address)

    async def stop(self) -> None:
        await self.coordinators.stop()
        if self.participant.is_running:
            await self.participant.kill()

    async def begin(self, behaviour: str) -> tuple[ClientTransaction, list[Xid]]:
        """A transaction with an ended branch in the set, and one in the file that behaves so."""
        participants = ["set:east", f"grpc://{self.address}/{behaviour}"]
        transaction = await ClientTransaction.begin(self.coordinator, participants)
        branch = await self.manager.start(transaction.xids[0])
        await branch.publish("q", [behaviour.encode()])
        assert await self.manager.end(transaction.xids[0]) is XaStatus.OK
        return transaction, transaction.xids

    async def outcome(self, transaction: ClientTransaction) -> pb.GetDistributedOutcomeResponse:
        request = pb.GetDistributedOutcomeRequest(transaction_id=transaction.transaction_id)
        return await self.coordinator.call("GetOutcome", request, pb.GetDistributedOutcomeResponse())

    def broker_log(self) -> str:
        return (self.deployment.cluster.directory / "B1" / "broker.log").read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rig]:
    directory = tmp_path_factory.mktemp("cluster")
    (metrics,) = choose_ports(1)
    arguments = (*IN_DOUBT, "--metrics-port", str(metrics))
    async with deployed(
        directory, sets={"east": ["B1"]}, brokers=1, broker_arguments=arguments
    ) as deployment:
        rig = Rig(deployment, directory, metrics)
        try:
            await rig.start()
            async with await connect(deployment.addresses) as client, client.session() as session:
                await session.declare_queue("q", set_name="east")
                rig.manager = await session.resource_manager("east")
                await rig.manager.select()
                yield rig
        finally:
            await rig.stop()


async def test_one_that_votes_and_vanishes_is_warned_of_and_finished_when_it_is_back(rig: Rig) -> None:
    transaction, xids = await rig.begin("vanishes")
    answer = await transaction.commit(rig.coordinator)
    name = transaction.participants[1]
    assert (answer.state, answer.heuristic, list(answer.pending)) == (COMMITTED, 0, [name])
    assert await rig.manager.recover() == [], "the others are finished meanwhile"
    assert read_states(rig.file)[str(xids[1])] == "prepared"
    (listed,) = await transaction.listed(rig.coordinator)
    assert [branch.ended for branch in listed.branches] == ["committed", ""]

    async def warned() -> list[str]:
        lines = rig.coordinators.log_of(rig.coordinator).splitlines()
        return [
            line for line in lines if "event=in_doubt" in line and transaction.transaction_id.hex() in line
        ]

    (line, *_) = await until("the coordinator warns", warned, bool)
    assert "WARNING" in line and f"missing=[{name} xid={xids[1]}]" in line
    assert await metric(rig.coordinator_metrics, "lockstep_distributed_in_doubt_overdue") == 1
    assert await metric(rig.coordinator_metrics, "lockstep_distributed_in_doubt") == 1
    assert await metric(rig.coordinator_metrics, "lockstep_distributed_in_doubt_oldest_seconds") >= 1
    await rig.start_participant()
    await until("it is finished", lambda: transaction.listed(rig.coordinator), lambda shown: not shown)
    assert read_states(rig.file)[str(xids[1])] == "committed"
    assert len(await warned()) <= 5, "at a growing interval"


async def test_one_that_rolls_back_what_it_has_voted_for_is_recorded_until_it_is_forgotten(rig: Rig) -> None:
    transaction, _ = await rig.begin("contradicts")
    answer = await transaction.commit(rig.coordinator)
    hazards = [pb.Hazard(participant=transaction.participants[1], ended="rolled back")]
    assert (answer.state, answer.heuristic, list(answer.hazards)) == (COMMITTED, XaStatus.HEURMIX, hazards)
    outcome = await rig.outcome(transaction)
    assert (outcome.state, outcome.heuristic, list(outcome.hazards)) == (COMMITTED, XaStatus.HEURMIX, hazards)
    name = transaction.transaction_id.hex()
    assert (await read(rig.deployment, "tx", "forget", name))["state"] == "forgotten"
    outcome = await rig.outcome(transaction)
    assert (outcome.state, outcome.heuristic, list(outcome.hazards)) == (COMMITTED, 0, hazards)
    status, _, err = await lockstep(rig.deployment, "tx", "forget", name)
    assert (status, name in err) == (1, True), err


async def test_an_operator_that_decides_otherwise_makes_a_mixed_outcome(rig: Rig) -> None:
    """The broker warns of the branch; the operator commits it; its client is told that the whole could not."""
    transaction, xids = await rig.begin("ok")
    assert await rig.manager.prepare(xids[0]) is XaStatus.OK

    async def warned() -> bool:
        lines = rig.broker_log().splitlines()
        return any("WARNING" in line and f"event=in_doubt xid={xids[0]}" in line for line in lines)

    await until("the broker warns", warned, bool)
    assert await metric(rig.broker_metrics, "lockstep_tx_prepared") == 1
    assert await metric(rig.broker_metrics, "lockstep_tx_in_doubt_overdue") == 1
    await read(rig.deployment, "tx", "commit", str(xids[0]), "--heuristic")
    answer = await transaction.commit(rig.coordinator)
    assert (answer.state, answer.heuristic) == (ROLLED_BACK, XaStatus.HEURMIX)
    assert [(one.participant, one.ended) for one in answer.hazards] == [
        ("set:east", "heuristically committed")
    ]
    assert read_states(rig.file)[str(xids[1])] == "rolled-back"

    name = transaction.transaction_id.hex()
    for words in (("show", name), ("list",)):
        branch, whole = await read(rig.deployment, "tx", *words)
        assert (branch["xid"], branch["state"]) == (str(xids[0]), "heuristically committed")
        assert (whole["distributed_transaction"], whole["state"]) == (name, "heuristic mixed")
        assert whole["decision"] == "rolled back"
    status, out, _ = await lockstep(rig.deployment, "tx", "list")
    assert status == 0 and "heuristic mixed" in out
    await read(rig.deployment, "tx", "forget", str(xids[0]))
    (whole,) = await read(rig.deployment, "tx", "show", str(xids[0]))
    assert whole["participants"] == [
        {"participant": "set:east", "vote": "", "ended": "heuristically committed"}
    ]
    await read(rig.deployment, "tx", "forget", name)
    assert await read(rig.deployment, "tx", "list") == []
    status, _, err = await lockstep(rig.deployment, "tx", "show", name)
    assert (status, name in err) == (1, True), err
