"""The workloads by their numbers, and which cases of them a run has.

Law: a case says everything that a load program needs, whoever serves it; so peers get the very same case.

    W1 publish in transactions           W4 distributed transactions      W6 latency under half of the highest throughput
    W2 accept and publish in one         W5 failover                      W7 scale, one dimension at a time
    W3 plain publish with confirms, consume with acceptance
"""

from dataclasses import dataclass, replace

BODY_BYTES = 1024
RING = 20_000
"""Length at which a queue that nobody reads drops its oldest message: memory stays the same however long a case runs."""
WINDOW = 1000
"""Messages unconfirmed at a time in W3."""
CALL = 100
"""Messages of one call of the SDK in W3; protocols without such calls send them one by one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a table."""

    workload: str
    operation: str
    """publish, move, stream, consume, xa, postgres, sets."""
    size: int
    """Messages of a transaction; of W3 the window, or for each connection how many it consumes."""
    connections: int
    body_bytes: int = BODY_BYTES
    ring: int = RING
    path: str = "sdk"
    """How clients reach Lockstep: sdk, or amqp through the proxy. Peers have their own way."""
    call: int = 1
    """Messages in one call, where there are no transactions."""
    queues: int = 0
    """Which the connections use in turn; 0: one for each connection."""
    depth: int = 0
    """Messages in each queue beforehand."""
    sets: int = 1
    brokers: int = 3
    rate: float = 0.0
    """Transactions a second of all connections together, due at even times; 0: as fast as they go."""

    @property
    def is_counted(self) -> bool:
        """It ends when everything is done, and not by time."""
        return self.operation == "consume"

    @property
    def messages(self) -> int:
        """In one transaction: what it takes counts as well as what it publishes."""
        return 2 * self.size if self.operation == "move" else self.size

    @property
    def title(self) -> str:
        clients = f"{self.connections} client{'s' if self.connections > 1 else ''}"
        messages = f"{self.size} message{'s' if self.size > 1 else ''}"
        words = {
            "publish": f"tx of {self.size}, {clients}",
            "move": f"accept {self.size} and publish {self.size}, {clients}",
            "stream": f"publish, window {self.size}, {self.call} a call, {clients}",
            "consume": f"consume {self.size * self.connections:,}, {clients}",
            "xa": f"XA verbs on one set, {messages}, {clients}",
            "sets": f"DTX over two sets, {messages}, {clients}",
            "postgres": f"DTX with PostgreSQL, {messages}, {clients}",
        }[self.operation]
        usual_sets = 2 if self.operation == "sets" else 1
        more = [
            f"{name} {value:,}"
            for name, value, usual in (
                ("bodies of", self.body_bytes, BODY_BYTES),
                ("queues:", self.queues, 0),
                ("depth", self.depth, 0),
                ("sets:", self.sets, usual_sets),
                ("brokers:", self.brokers, 3),
            )
            if value != usual
        ]
        if self.rate:
            more.append(f"at {self.rate:,.0f} tx/s")
        return ", ".join([words, *more])


def publishing(sizes: tuple[int, ...], counts: tuple[int, ...]) -> list[Case]:
    """W1."""
    return [Case("W1", "publish", size, count) for size in sizes for count in counts]


W1 = publishing((1, 10, 100), (1, 4, 16))
W2 = [Case("W2", "move", 10, 4, ring=0)]
W3_PUBLISH = Case("W3", "stream", WINDOW, 4, call=CALL)
W3_CONSUME = Case("W3", "consume", 25_000, 4, ring=0)
W3 = [W3_PUBLISH, replace(W3_PUBLISH, call=1), W3_CONSUME]
W4 = [
    *(Case("W4", "xa", size, count) for size in (1, 10) for count in (1, 4, 16)),
    Case("W4", "sets", 1, 4, sets=2),
    Case("W4", "postgres", 1, 4),
]
AMQP = [
    *(Case("W1", "publish", size, 4, path="amqp") for size in (1, 10, 100)),
    replace(W2[0], path="amqp"),
    Case("W3", "stream", WINDOW, 4, path="amqp"),
    Case("W3", "consume", 10_000, 4, ring=0, path="amqp"),
]
AMQP_FULL = [
    *(replace(case, path="amqp") for case in W1),
    *AMQP[3:],
]
COSTS = (
    *(Case("W1", "publish", size, count) for size, count in ((1, 16), (10, 4), (10, 16), (100, 4))),
    W2[0],
    W3_PUBLISH,
    W3_CONSUME,
)
"""Of which each hop's cost is recorded."""
COSTS_AMQP = (Case("W1", "publish", 10, 4, path="amqp"), Case("W3", "stream", 1000, 4, path="amqp"))
LATENCY_SHORT = ((10, 4),)
LATENCY_FULL = ((1, 4), (10, 4), (100, 4), (1, 16))
"""(size, connections) of W6, whose rate is half of what W1 showed for them."""

_SCALE = Case("W7", "publish", 10, 4)
W7 = {
    "queues": [replace(_SCALE, queues=count) for count in (1, 10, 1_000, 10_000)],
    "connections": [replace(_SCALE, size=1, connections=count, ring=100) for count in (10, 100, 1_000)],
    "queue depth": [
        replace(_SCALE, body_bytes=100, queues=1, depth=depth, ring=0)
        for depth in (0, 10_000, 100_000, 1_000_000)
    ],
    "body bytes": [
        replace(_SCALE, body_bytes=size, ring=max(20, min(RING, 2**28 // size)))
        for size in (100, 1024, 10 * 1024, 100 * 1024, 2**20)
    ],
    "brokers": [replace(_SCALE, brokers=count) for count in (1, 2, 3, 5)],
    "sets": [replace(_SCALE, connections=16, sets=count) for count in (1, 2, 4, 8)],
}
"""One dimension at a time."""
