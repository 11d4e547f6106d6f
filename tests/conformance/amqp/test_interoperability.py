"""Messages between clients of gRPC and Proton's Python client: the body's bytes are what the sender gave."""

from proton import Message

from lockstep.client.consumer import Message as GrpcMessage
from lockstep.core.amqp.sections import PROPERTIES_ANNOTATION
from tests.conformance.amqp.cluster import SETS, AmqpCluster
from tests.conformance.amqp.proton_client import ProtonClient, bodies

BODIES = [b"", b"plain", bytes(range(256)), b"\x00\x53\x75 looks like a section", b"x" * 100_000]


async def consume(amqp: AmqpCluster, queue: str, count: int) -> list[GrpcMessage]:
    consumer = await amqp.session.consume(queue)
    got: list[GrpcMessage] = []
    async with consumer:
        async for message in consumer:
            message.accept()
            got.append(message)
            if len(got) == count:
                break
    return got


def test_grpc_messages_are_received_as_data(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name=SETS[0]))
    amqp.run(amqp.session.publish(queue, BODIES))
    got = client.receiver(queue).take(len(BODIES))
    assert bodies(got) == BODIES
    assert all(one.message.inferred and one.message.durable for one in got)


def test_properties_of_a_grpc_message_are_an_annotation(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name=SETS[0]))
    amqp.run(amqp.session.publish(queue, [b"body"], properties=b"of the \xff application", durable=False))
    message = client.receiver(queue).take_one().message
    assert not message.durable
    assert message.annotations is not None
    found = {str(name): value for name, value in message.annotations.items()}
    assert found == {PROPERTIES_ANNOTATION.decode(): b"of the \xff application"}


def test_amqp_data_is_received_by_grpc_as_it_is(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    client.sender(queue).send(*(Message(body=body, inferred=True) for body in BODIES))
    got = amqp.run(consume(amqp, queue, len(BODIES)))
    assert [message.body for message in got] == BODIES


def test_amqp_text_and_binary_values_are_received_by_grpc_as_bare_bytes(
    amqp: AmqpCluster, client: ProtonClient, queue: str
) -> None:
    client.sender(queue).send("text: é", b"\x00binary")
    got = amqp.run(consume(amqp, queue, 2))
    assert [message.body for message in got] == ["text: é".encode(), b"\x00binary"]


def test_grpc_takes_and_returns_what_amqp_sent(amqp: AmqpCluster, client: ProtonClient, queue: str) -> None:
    sent = Message(body={"key": [1, 2]}, properties={"colour": "red"}, subject="kept", durable=True)
    client.sender(queue).send(sent)

    async def fail_once() -> None:
        consumer = await amqp.session.consume(queue)
        async with consumer:
            async for message in consumer:
                await message.fail()
                break

    amqp.run(fail_once())
    message = client.receiver(queue).take_one().message
    assert (message.body, message.properties, message.subject) == (sent.body, sent.properties, "kept")
    assert message.delivery_count == 1
