"""The workloads by their numbers, and which cases of them a run has.

Law: a case says everything that a load program needs, whoever serves it; so peers get the very same case.

    W1 publish in transactions           W4 distributed transactions      W6 latency under half of the highest throughput
    W2 accept and publish in one         W5 failover                      W7 scale, one dimension at a time
    W3 plain publish with confirms, consume with acceptance
"""

from dataclasses import asdict, dataclass, replace

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
    varied: str = ""
    """The field that tells it from others of its dimension of W7: its title says it even where it is as usual."""

    @property
    def is_counted(self) -> bool:
        """It ends when everything is done, and not by time."""
        return self.operation == "consume"

    @property
    def messages(self) -> int:
        """In one transaction: what it takes counts as well as what it publishes, and in each of two sets it publishes as many."""
        return 2 * self.size if self.operation in ("move", "sets") else self.size

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.workload, self.title

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
            for name, field, value, usual in (
                ("bodies of", "body_bytes", self.body_bytes, BODY_BYTES),
                ("queues:", "queues", self.queues, 0),
                ("depth", "depth", self.depth, 0),
                ("sets:", "sets", self.sets, usual_sets),
                ("brokers:", "brokers", self.brokers, 3),
            )
            if value != usual or field == self.varied
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
W4_XA = [Case("W4", "xa", size, count) for size in (1, 10) for count in (1, 4, 16)]
_OVER_SETS = [replace(case, operation="sets", sets=2) for case in W4_XA]
_WITH_POSTGRES = Case("W4", "postgres", 1, 4)
W4_COORDINATED = [Case("W4", "sets", 1, 4, sets=2), _WITH_POSTGRES]
"""Coordinators end these; they have a cluster of their own, with several sets and a database."""
W4_COORDINATED_FULL = [*_OVER_SETS, _WITH_POSTGRES]
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


def _scale(varied: str, values: tuple[int, ...], case: Case) -> list[Case]:
    return [Case(**{**asdict(case), "varied": varied, varied: value}) for value in values]


_TENS = Case("W7", "publish", 10, 4)
_SMALL = replace(_TENS, body_bytes=100, ring=0)
W7 = {
    "queues": _scale("queues", (1, 10, 1_000, 10_000), _TENS),
    "connections": _scale("connections", (10, 100, 1_000), replace(_TENS, size=1, ring=100)),
    "queue depth": _scale("depth", (0, 10_000, 100_000, 1_000_000), replace(_SMALL, queues=1)),
    "depth of two queues, accepting": _scale(
        "depth", (1_000, 500_000), replace(_SMALL, operation="move", connections=1)
    ),
    "body bytes": [
        replace(case, ring=max(20, min(RING, 2**28 // case.body_bytes)))
        for case in _scale("body_bytes", (100, 1024, 10 * 1024, 100 * 1024, 2**20), _TENS)
    ],
    "brokers": _scale("brokers", (1, 2, 3, 5), _TENS),
    "sets": _scale("sets", (1, 2, 4, 8), replace(_TENS, connections=16)),
}
"""One dimension at a time."""
W7_SHAPES = ("brokers", "sets")
"""Dimensions whose cases have a cluster each; those of the others share one."""
W7_AMQP = [replace(case, path="amqp") for name in ("connections", "body bytes") for case in W7[name]]
"""Dimensions that are the proxy's, too."""
