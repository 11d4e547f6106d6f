"""Frames that nobody should send: right ones and what comes of them by mutation, each from a kind and a seed.

Law: the same kind and seed are the same bytes, and seed 0 is the frame as it should be. What follows a usual beginning gets
deeper into a listener than noise does; so values are near what is there: handles and channels that exist, delivery ids about to
come, ids of transactions that may be open.
"""

import struct
from collections.abc import Callable
from random import Random

from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import attach_coordinator, attach_receiver, attach_sender, begin, credit

SENDER, RECEIVER, COORDINATOR = 0, 1, 2
"""Handles of the links in `beginning`."""


def beginning() -> list[bytes]:
    """A connection with a session and three links, and a transaction."""
    return [
        codec.AMQP_HEADER,
        performative("open", container_id="c", desired_capabilities=codec.symbols("ANONYMOUS-RELAY")),
        begin(),
        attach_sender("s", "queue", SENDER),
        attach_receiver("r", "queue", RECEIVER),
        attach_coordinator(COORDINATOR),
        credit(RECEIVER, 5),
        _transfer(Random(0), COORDINATOR, codec.request(composite("declare")), 0),
    ]


def _transfer(random: Random, handle: int, payload: bytes, number: int | None = None) -> bytes:
    number = random.choice((0, 1, 1, 2, 3)) if number is None else number
    return performative(
        "transfer", 0, payload, handle=handle, delivery_id=number, delivery_tag=codec.binary(b"%d" % number)
    )


def _txn_id(random: Random) -> bytes:
    known = struct.pack(">Q", random.choice((1, 1, 1, 2, 3)))
    return codec.binary(random.choice((known, known, known, b"", b"x" * 300)))


def _outcome(random: Random) -> bytes:
    kind = random.choice(("accepted", "rejected", "released", "modified", "received", "none", "other"))
    if kind == "none":
        return codec.NULL
    if kind == "other":
        return codec.described(value(random, 1), value(random, 2))
    if kind == "modified":
        return composite("modified", delivery_failed=random.random() < 0.5, undeliverable_here=True)
    descriptor = codec.symbolic(kind) if random.random() < 0.3 else None
    return composite(kind, descriptor=descriptor)


def _state(random: Random) -> bytes:
    if random.random() < 0.5:
        return composite("transactional_state", txn_id=_txn_id(random), outcome=_outcome(random))
    return _outcome(random)


def _posting(random: Random) -> bytes:
    return performative(
        "transfer",
        0,
        codec.message(b"body"),
        handle=SENDER,
        delivery_id=random.choice((0, 1, 1, 2)),
        delivery_tag=codec.binary(b"t"),
        settled=random.random() < 0.3,
        more=random.random() < 0.3,
        aborted=random.random() < 0.1,
        state=_state(random),
    )


def _piece(random: Random) -> bytes:
    """A transfer that goes on."""
    return performative("transfer", 0, b"more", handle=random.choice((0, 0, 2)), more=random.random() < 0.6)


def _declare(random: Random) -> bytes:
    global_id = random.choice((None, None, codec.binary(b"\0\0\0\1\1gb"), codec.binary(b"?")))
    return _transfer(random, COORDINATOR, codec.request(composite("declare", global_id=global_id)))


def _discharge(random: Random) -> bytes:
    body = composite("discharge", txn_id=_txn_id(random), fail=random.random() < 0.5)
    return _transfer(random, COORDINATOR, codec.request(body))


def _disposition(random: Random) -> bytes:
    first = random.choice((0, 0, 1, 2, 19, 2**31, 2**32 - 1))
    return performative(
        "disposition",
        role=random.random() < 0.8,
        first=first,
        last=random.choice((None, first, first + 3, 2**31 - 1, 2**32 - 1)) and first,
        settled=random.random() < 0.6,
        state=_state(random),
    )


def _flow(random: Random) -> bytes:
    fields = {"drain": random.random() < 0.2, "echo": random.random() < 0.2}
    handle = random.choice((0, 1, 1, 1, 2, 7))
    count = random.choice((0, 1, 10, 1000, 2**31 - 1, 2**32 - 1))
    return credit(handle, count, random.choice((0, 0, 3, 2**31, 2**32 - 1)), **fields)


def _again(random: Random) -> bytes:
    """What ends, and what begins once more."""
    handle, channel = random.randrange(4), random.randrange(3)
    return random.choice(
        (
            lambda: performative("detach", handle=handle, closed=random.random() < 0.5),
            lambda: performative("end", channel),
            lambda: performative("close"),
            lambda: performative("open", container_id="d"),
            lambda: begin(channel),
            lambda: begin(channel, remote_channel=codec.ushort(random.randrange(3))),
            lambda: attach_sender(
                random.choice("srx"), random.choice(("queue", None, "missing", "topic://t")), handle
            ),
            lambda: attach_receiver(random.choice("srx"), random.choice(("queue", "topic://t/k")), handle),
            lambda: attach_coordinator(handle),
        )
    )()


def _attach(random: Random) -> bytes:
    """With much in it."""
    selector = codec.described(codec.symbol("apache.org:selector-filter:string"), codec.string("a = 1"))
    source = composite(
        "source",
        address=random.choice((None, "queue", "topic://t", "queue://missing")),
        durable=random.choice((0, 2)),
        expiry_policy=codec.symbol(random.choice(("never", "link-detach"))),
        dynamic=random.random() < 0.2,
        distribution_mode=random.choice((None, codec.symbol("copy"))),
        filter=codec.mapping(codec.symbol("jms-selector"), selector),
        capabilities=codec.symbols(random.choice(("queue", "topic", "shared", "temporary-topic"))),
    )
    target = composite("target", address=None, dynamic=True, capabilities=codec.symbols("temporary-queue"))
    return performative(
        "attach",
        name=random.choice("xyz"),
        handle=random.choice((0, 3, 4, 255, 2**31 - 1, 2**31)),
        role=random.random() < 0.7,
        snd_settle_mode=codec.ubyte(random.randrange(4)),
        rcv_settle_mode=codec.ubyte(random.randrange(3)),
        source=source,
        target=target,
        unsettled=codec.mapping(codec.binary(b"t"), _state(random)),
        initial_delivery_count=random.choice((0, 2**32 - 1)),
        max_message_size=codec.ulong(random.choice((0, 10, 2**64 - 1))),
    )


def _transfer_on_receiving(random: Random) -> bytes:
    return _transfer(random, RECEIVER, codec.message(b"wrong way"))


def _wide_open(random: Random) -> bytes:
    return performative(
        "open",
        container_id=random.choice(("c", "", "x" * 300)),
        max_frame_size=random.choice((0, 1, 512, 2**32 - 1)),
        channel_max=codec.ushort(random.choice((0, 1, 65535))),
        idle_time_out=random.choice((0, 1, 2**32 - 1)),
        desired_capabilities=value(random, 2),
        properties=value(random, 3),
    )


KINDS: tuple[Callable[[Random], bytes], ...] = (
    *(_posting, _piece, _declare, _discharge, _disposition, _flow, _again, _attach),
    *(_transfer_on_receiving, _wide_open),
)


# --- values of any type, and hostile ones ---


def value(random: Random, depth: int) -> bytes:
    """An encoded value, mostly well-formed."""
    simple: tuple[bytes, ...] = (
        *(codec.NULL, b"\x41", b"\x42", b"\x45", b"\x43", b"\x44", codec.ubyte(255), codec.ushort(65535)),
        *(codec.uint(2**32 - 1), codec.ulong(2**64 - 1), codec.long(-1), codec.double(float("inf"))),
        *(
            codec.double(float("nan")),
            codec.binary(b"\xff" * 9),
            codec.string("é"),
            codec.symbol("amqp:accepted:list"),
        ),
        *(b"\xa1\x02\xff\xfe", b"\xa3\x01\xff", b"\x98" + bytes(16), b"\x94" + bytes(16), b"\x74" + bytes(4)),
        *(b"\x83" + b"\xff" * 8, b"\x73\xff\xff\xff\xff", b"\x56\x02"),
    )
    if depth <= 0 or random.random() < 0.5:
        return random.choice(simple)
    inner = [value(random, depth - 1) for _ in range(random.randrange(4))]
    return random.choice(
        (
            lambda: codec.sequence(*inner),
            lambda: codec.mapping(*inner),
            lambda: codec.described(value(random, 0), value(random, depth - 1)),
            lambda: codec.symbols("a", "b"),
            lambda: bomb(random),
        )
    )()


def bomb(random: Random) -> bytes:
    """Small, and large when it is looked into."""
    depth = random.choice((20, 200, 2000, 12_000))
    return random.choice(
        (
            lambda: nested_lists(depth),
            lambda: b"\x00\x44" * depth + b"\x40",
            lambda: b"\x00" * depth + b"\x40",
            lambda: nested_arrays(depth),
            # Elements without width: four thousand million of them in ten bytes.
            lambda: struct.pack(">BIIB", 0xF0, 5, 2**32 - 1, 0x40),
            lambda: struct.pack(">BIIB", 0xF0, 5, 60_000, 0x45),
            lambda: struct.pack(">BII", 0xD0, 4, 2**32 - 1),
            lambda: struct.pack(">BII", 0xD1, 2**32 - 1, 3),
            lambda: struct.pack(">BI", 0xB0, 2**32 - 1),
        )
    )()


def nested_lists(depth: int) -> bytes:
    """A list in a list in a list."""
    content = b"\x45"
    for _ in range(depth):
        content = (
            struct.pack(">BII", 0xD0, 4 + len(content), 1) + content
            if depth > 60
            else codec.sequence(content)
        )
        if len(content) > 100_000:
            break
    return content


def nested_arrays(depth: int) -> bytes:
    """An array of an array of an array."""
    depth = min(depth, 10_000)
    size = 9 * depth
    return b"\xf0" + b"".join(
        struct.pack(">IIB", size - 9 * place - 4, 1, 0xF0 if place < depth - 1 else 0x40)
        for place in range(depth)
    )


# --- mutation ---


def hostile(kind: int, seed: int) -> bytes:
    """A frame of a kind, mutated as the seed says; 0: as it should be."""
    random = Random(seed)
    made = KINDS[kind % len(KINDS)](random)
    return made if seed == 0 else mutated(made, random)


def mutated(frame: bytes, random: Random) -> bytes:
    """Half of all stay as they are, and so does what is hardly anything: it may have been changed before."""
    way = random.randrange(16)
    data = bytearray(frame)
    if way < 7 or len(frame) < 2:
        return frame
    if way < 10:
        return _with_other_field(frame, random)
    if way < 12:
        for _ in range(random.choice((1, 1, 2, 5))):
            data[random.randrange(len(data))] = random.choice(
                (0, 0x40, 0x45, 0x7F, 0xD0, 0xFF, random.randrange(256))
            )
    elif way == 12:
        del data[random.randrange(len(data)) :]
        if random.random() < 0.7 and len(data) >= 4:
            data[:4] = len(data).to_bytes(4)
    elif way == 13:
        place = random.choice((0, 4, 5, 6, 7))
        data[place : place + 1] = bytes((random.choice((0, 1, 2, 3, 5, 255)),))
    elif way == 14:
        return frame + frame
    else:
        place = random.randrange(min(8, len(data) - 1), len(data))
        data[place : place + random.randrange(3)] = value(random, 2)
        data[:4] = len(data).to_bytes(4)
    return bytes(data)


def _with_other_field(frame: bytes, random: Random) -> bytes:
    """One field replaced by a value of any type."""
    spans = _fields(frame)
    if not spans:
        return frame
    start, end = random.choice(spans)
    items = [frame[at:to] for at, to in spans]
    items[spans.index((start, end))] = value(random, 3)
    body_end = spans[-1][1]
    descriptor_end = 8 + (3 if frame[9] == 0x53 else 2)
    return codec.frame(
        frame[8:descriptor_end] + codec.sequence(*items) + frame[body_end:],
        int.from_bytes(frame[6:8]),
        kind=frame[5],
    )


def _fields(frame: bytes) -> list[tuple[int, int]]:
    """Where the fields of a performative with a small descriptor are."""
    at = 11
    if len(frame) < 13 or frame[8:10] != b"\x00\x53" or frame[at] not in (0xC0, 0xD0):
        return []
    width = 1 if frame[at] == 0xC0 else 4
    count = int.from_bytes(frame[at + 1 + width : at + 1 + 2 * width])
    at += 1 + 2 * width
    spans = []
    try:
        for _ in range(count):
            _, end = codec.decode(frame, at)
            spans.append((at, end))
            at = end
    except (ValueError, TypeError, RecursionError):
        return []
    return spans
