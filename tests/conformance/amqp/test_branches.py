"""Proton's Python client: branches of distributed transactions, which the coordinator ends (DESIGN 6; AMQP 1.0, 4.5.2)."""

from typing import TypeVar

from google.protobuf.message import Message as Proto
from proton import Delivery, Described, Message

from lockstep.runtime.xid_codec import decode_xid
from lockstep.wire.v1 import coordinator_pb2 as pb
from tests.conformance.amqp.cluster import SETS, AmqpCluster, name_in
from tests.conformance.amqp.proton_client import ProtonClient, bodies
from tests.conformance.amqp.proton_transactions import DECLARE, Coordinator, post, refusal_of_post, retire

_Response = TypeVar("_Response", bound=Proto)


class Distributed:
    """A transaction at Lockstep's coordinator, as its manager drives it; a branch in each set."""

    def __init__(self, amqp: AmqpCluster) -> None:
        self._amqp = amqp
        begun = self._call(
            "Begin", pb.BeginDistributedRequest(timeout_ms=20_000), pb.BeginDistributedResponse()
        )
        self._id, self._generation = begun.transaction_id, begun.generation
        self._participants: list[str] = []

    def _call(self, verb: str, request: Proto, response: _Response) -> _Response:
        return self._amqp.run(self._amqp.client.coordinators.call(verb, request, response))

    def enlist(self, set_name: str) -> bytes:
        """The global-id of a new branch in the set."""
        request = pb.EnlistParticipantRequest(
            transaction_id=self._id,
            generation=self._generation,
            number=len(self._participants),
            participant=f"set:{set_name}",
        )
        enlisted = self._call("Enlist", request, pb.EnlistParticipantResponse())
        self._participants.append(f"set:{set_name}")
        return decode_xid(enlisted.xid).encode()

    def close(self) -> None:
        request = pb.CloseDistributedRequest(
            transaction_id=self._id, generation=self._generation, participants=self._participants
        )
        self._call("Close", request, pb.CloseDistributedResponse())

    def rollback(self) -> None:
        request = pb.RollbackDistributedRequest(
            transaction_id=self._id,
            generation=self._generation,
            participants=self._participants,
            is_closed=True,
            reads_state=True,
        )
        self._call("Rollback", request, pb.RollbackDistributedResponse())

    def commit(self, *, is_closed: bool) -> bool:
        request = pb.CommitDistributedRequest(
            transaction_id=self._id,
            generation=self._generation,
            participants=self._participants,
            is_closed=is_closed,
            reads_state=True,
        )
        response = self._call("Commit", request, pb.CommitDistributedResponse())
        return bool(response.state == pb.DISTRIBUTED_STATE_COMMITTED)


def declare(coordinator: Coordinator, global_id: bytes) -> bytes:
    return coordinator.declared(start_declare(coordinator, global_id))


def start_declare(coordinator: Coordinator, global_id: bytes) -> Delivery:
    return coordinator.sending.start(Message(body=Described(DECLARE, [global_id])))


def test_branches_in_two_sets_commit_together(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    coordinator, distributed = Coordinator(client), Distributed(amqp)
    queues = [name_in(place, queue) for place in range(len(SETS))]
    for name in queues:
        client.sender(name)
    sets = sorted(SETS)
    branches = [declare(coordinator, distributed.enlist(sets[place])) for place in range(len(SETS))]
    for name, branch in zip(queues, branches, strict=True):
        post(client.sender(name), branch, "in a branch")
    distributed.close()
    for branch in branches:
        coordinator.commit(branch)
    receivers = [client.receiver(name) for name in queues]
    for receiver in receivers:
        receiver.take_nothing()
    assert distributed.commit(is_closed=True)
    assert [bodies(receiver.take(1)) for receiver in receivers] == [["in a branch"], ["in a branch"]]


def test_one_branch_that_was_prepared_commits(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    """What it takes is locked until then."""
    coordinator, distributed = Coordinator(client), Distributed(amqp)
    name = name_in(0, queue)
    client.sender(name).send("taken")
    branch = declare(coordinator, distributed.enlist(sorted(SETS)[0]))
    receiver = client.receiver(name)
    retire(receiver.take_one(), branch, is_settled=True)
    coordinator.commit(branch)
    with ProtonClient(amqp.port) as other:
        other.receiver(name).take_nothing()
    assert distributed.commit(is_closed=False)
    with ProtonClient(amqp.port) as other:
        other.receiver(name).take_nothing()


def test_a_branch_that_failed_is_rolled_back(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    coordinator, distributed = Coordinator(client), Distributed(amqp)
    name = name_in(0, queue)
    sending = client.sender(name)
    branch = declare(coordinator, distributed.enlist(sorted(SETS)[0]))
    post(sending, branch, "undone")
    distributed.close()
    coordinator.rollback(branch)
    distributed.rollback()
    client.receiver(name).take_nothing()


def test_a_branch_works_in_one_set(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    coordinator, distributed = Coordinator(client), Distributed(amqp)
    here, there = name_in(0, queue), name_in(1, queue)
    branch = declare(coordinator, distributed.enlist(sorted(SETS)[0]))
    post(client.sender(here), branch, "here")
    sending = client.sender(there)
    delivery = sending.start("there")
    delivery.local.data = [branch]  # type: ignore[list-item]
    delivery.update(0x34)
    assert refusal_of_post(sending, delivery, branch) == "amqp:not-allowed"
    assert coordinator.refusal(coordinator.start_discharge(branch)) == "amqp:transaction:rollback"


def test_what_is_no_xid_begins_no_branch(client: ProtonClient) -> None:
    coordinator = Coordinator(client)
    assert coordinator.refusal(start_declare(coordinator, b"no xid")) == "amqp:invalid-field"
