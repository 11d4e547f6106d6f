"""The options of the source `lockstep`, as Spark gives them: names without case, values as text.

| Option | Is | Default |
|---|---|---|
| `brokers` | host:port of brokers, separated by commas; one is enough | required |
| `group` | the durable subscription; one for each query, never two queries with one group | required |
| `start` | of a new group: `latest`, `earliest`, or offsets as JSON: `{"set": [index, epoch]}` | `latest` |
| `maxEvents` | of one micro-batch, about: a transaction is never cut; 0: no limit | 100000 |
| `holdSeconds` | how long a transaction whose sibling has no outcome may hold its sets back; 0: for ever. Otherwise `maxEvents` does not count where a set is held back, so that it does not fall behind the others | 0 |
| `waitSeconds` | how long a plan waits for something new | 0.5 |
| `withoutContent` | `true`: without properties and bodies | `false` |
| `tlsCaFile` | where brokers are reached by TLS: certificates that theirs are from, in PEM | none: no TLS |
| `tlsCertificateFile`, `tlsKeyFile` | the client's own, in PEM, where brokers want one | none |
| `end` | batch reader only: offsets as JSON to read up to | all that is committed |

Files are read wherever the source is: by the driver, and by every worker.
"""  # noqa: E501 - a table's row is one line

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient, Start
from services.pipeline.tls_options import TlsOptions

MAX_EVENTS = 100_000
"""At 1 KiB each 100 MiB: some seconds of work, and an amount that workers and sinks hold."""
WAIT_SECONDS = 0.5
"""An idle query asks twice a second, and ends within that when it is stopped."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What one query or read was told."""

    brokers: str
    group: str
    start: str = "latest"
    max_events: int = MAX_EVENTS
    hold_seconds: float = 0.0
    wait_seconds: float = WAIT_SECONDS
    without_content: bool = False
    tls: TlsOptions = field(default_factory=TlsOptions)
    end: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Raises `ValueError` for what is missing or no value of its kind."""
        given = {name.lower(): value for name, value in options.items()}

        def required(name: str) -> str:
            if not given.get(name):
                raise ValueError(f"the source lockstep needs the option {name!r}")
            return given[name]

        parsed = cls(
            required("brokers"),
            required("group"),
            given.get("start", "latest"),
            int(given.get("maxevents", MAX_EVENTS)),
            float(given.get("holdseconds", 0)),
            float(given.get("waitseconds", WAIT_SECONDS)),
            given.get("withoutcontent", "false").lower() == "true",
            TlsOptions.parse(given),
            given.get("end", ""),
        )
        if parsed.max_events < 0 or parsed.hold_seconds < 0 or parsed.wait_seconds < 0:
            raise ValueError("maxEvents, holdSeconds and waitSeconds are not negative")
        if parsed.start not in {"latest", "earliest"}:
            offsets_from(json.loads(parsed.start))
        return parsed

    def connect(self) -> EventsClient:
        """A client of its own, for whoever calls it."""
        return EventsClient(self.brokers, tls=self.tls.load())

    def open(self, client: EventsClient) -> dict[str, EventOffset]:
        """Where the group stands; a new one begins at `start`."""
        if self.start == "latest":
            opened = client.open_subscription(self.group, Start.START_LATEST)
        elif self.start == "earliest":
            opened = client.open_subscription(self.group, Start.START_EARLIEST)
        else:
            offsets = offsets_from(json.loads(self.start))
            opened = client.open_subscription(self.group, Start.START_OFFSETS, offsets)
        return dict(opened.offsets)

    def is_open(self, client: EventsClient) -> bool:
        """Whether the group is there."""
        return self.group in client.subscriptions()

    def find(self, client: EventsClient) -> dict[str, EventOffset]:
        """Where the group of a checkpoint stands. Raises `ValueError` if it is gone: a new one would not know what was missed."""
        if not self.is_open(client):
            raise ValueError(
                f"there is no group {self.group!r}, and the query has a checkpoint of it: it was closed, or this is another"
                " cluster. What came meanwhile may be gone; begin anew, with a new checkpoint"
            )
        return self.open(client)


def offsets_from(plain: object) -> dict[str, EventOffset]:
    """From JSON; raises `ValueError` for what is none."""
    if not isinstance(plain, dict) or not all(
        isinstance(pair, list) and len(pair) in (2, 3) and all(isinstance(one, int) for one in pair)
        for pair in plain.values()
    ):
        raise ValueError(f'offsets are {{"set": [index, epoch]}}, perhaps with a reign behind, not {plain!r}')
    return {name: EventOffset(*pair) for name, pair in plain.items()}


def plain(offsets: Mapping[str, EventOffset]) -> dict[str, list[int]]:
    """For JSON, in order of the sets' names. A checkpoint of an older version has no reigns, and gets them with the next plan."""
    return {
        name: [offset.index, offset.epoch, offset.reign] if offset.reign else [offset.index, offset.epoch]
        for name, offset in sorted(offsets.items())
    }
