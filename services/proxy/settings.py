"""Settings of a proxy process, from its command line, and the limits of its connections with the reason for each."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.runtime.arguments import listen_address, listen_address_or_none, port_or_none
from lockstep.runtime.well_known_ports import AMQP_PORT
from services.proxy.security.settings import SecuritySettings, add_security_arguments, security_of

LISTEN = f"127.0.0.1:{AMQP_PORT}"
MESSAGE_BYTES = 800
"""What a message counts in each limit of bytes that wait here, beside its own, which its sender chooses: what the proxy and its
engine keep of it, whatever its length. Measured, with contents of some bytes: 840 of one that came from a client and is not
answered (about 600 of them the engine's), 820 of one that its client has and has not settled, 770 of one that is sent and not
taken, 310 of one that waits for credit."""
START_SECONDS = 15.0
"""Whoever has typed a wrong address hears of it soon. Who is started again later each time is better told to wait by itself."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Of one connection, and of what the proxy holds for it."""

    connections_max: int = 10_000
    """Of one worker, logged in: about 40 KiB each."""
    arrivals_max: int = 500
    """Of one worker, not logged in (yet): a TLS handshake takes 85 KiB, and a login some milliseconds of a processor, so that as
    many as these are through in some seconds."""
    frame_bytes_max: int = 128 * 1024
    """Largest frame that clients may send: a message of some 100 KiB in one, and not a connection's whole window."""
    channels_max: int = 255
    """Highest channel number: sessions of one connection. JMS opens one for each of its sessions."""
    links_max: int = 4_096
    """Of one connection."""
    receivers_max: int = 500
    """Of these links, those on which the client receives: a tenth of the consumers that a set allows the session of all of a
    worker's clients."""
    begun_bytes_max: int = 1024 * 1024 * 1024
    """Of one worker: sessions and links that clients have begun and not ended, by what they take (`begun_room.py`). 10,000
    connections may have sixteen links each; one alone has as many as it may."""
    attaching_max: int = 16
    """Of these links, those whose nodes are looked up and made at a time, in the order of their attaches: a burst of new names,
    as of an application server that starts, leaves brokers and other connections room for their work."""
    idle_seconds: float = 30.0
    """A connection on which nothing came for so long is closed; clients are told, and send empty frames."""
    handshake_seconds: float = 10.0
    """From accepting a connection to its open."""
    close_seconds: float = 2.0
    """A client that was told why its connection ends has so long to read it and to answer."""
    session_window_bytes: int = 64 * 1024 * 1024
    """What a client may have sent on one session and the engine has not handed over."""
    link_credit: int = 1_000
    """Messages that a sender may have unanswered on one link: a round of the primary's journal at full speed."""
    message_bytes_max: int = 32 * 1024 * 1024
    """As the brokers have it; told in each attach."""
    partial_bytes_max: int = 80 * 1024 * 1024
    """Of messages that a connection has sent parts of. Each part counts `PART_BYTES` more: two of the largest have room, in the
    smallest frames that AMQP knows (512 bytes)."""
    partials_bytes_max: int = 512 * 1024 * 1024
    """The same of all connections of one worker: a connection has no more of it than it leaves, but 64 KiB in any case. Five may
    hold as much as each may."""
    unanswered_bytes_max: int = 128 * 1024 * 1024
    """Of one worker: messages of all its clients that the brokers have not answered, as when a set has no primary. A connection
    that holds more of that than is left is not read. One alone has half of it, as much as a session of the SDK."""
    delivery_bytes_max: int = 8 * 1024 * 1024
    """What a consumer's credit may bring from the broker at once, by the average size of its messages."""
    delivery_credit_max: int = 2_000
    """The same in messages: more credit of a client is passed on as messages leave."""
    waiting_bytes_max: int = 16 * 1024 * 1024
    """What may have come for all links of a connection and wait for its socket, or for credit that was taken back; the rest goes
    back to its queues. Two links whose consumers get all that is asked for at once. As much once more is for the rest of big
    messages of which the client has a part."""
    deliveries_bytes_max: int = 256 * 1024 * 1024
    """The same of all connections of one worker: a connection holds no more of it than it leaves."""
    output_bytes_max: int = 4 * 1024 * 1024
    """What may wait to be written to a client, with what one of its sessions has no window for; behind it its messages wait, for
    at most `hold_seconds`."""
    connection_output_bytes_max: int = 16 * 1024 * 1024
    """The same over all sessions of a connection: a session has no more of it than it leaves."""
    outputs_bytes_max: int = 256 * 1024 * 1024
    """The same of all connections of one worker: a connection has no more of it than it leaves, but 64 KiB in any case."""
    unsettled_bytes_max: int = 512 * 1024 * 1024
    """Of one worker: what clients have and have not settled, by `MESSAGE_BYTES` each: no more of it is kept here. A connection
    that has more of it than it leaves gets messages when it has settled some: one alone may have 335,000, three times as many as
    one transaction takes."""
    hold_seconds: float = 5.0
    """Messages that a client has no credit or no room for any more go back to their queue after so long."""
    transactions_max: int = 200
    """Open ones of one connection: a twenty-fifth of what a set allows the session of all of a worker's clients."""
    transaction_seconds: float = 300.0
    """Open ones are rolled back after so long. 0: never."""
    wide_seconds_max: float = 600.0
    """Longest time-out of a transaction from when it touches a second resource set: coordinators take no longer one."""
    branch_seconds_max: float = 3_600.0
    """Longest time-out that a branch is given: a set refuses a longer one (dtx contract, set-timeout), and its first operation
    with that."""
    stop_seconds: float = 3.0
    """A stopping proxy waits so long for its clients to hear that it does."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What one proxy process is told."""

    brokers: tuple[str, ...]
    """host:port of brokers; one that answers is enough."""
    listen: str = LISTEN
    """host:port for AMQP; port 0 takes a free one."""
    listen_tls: str = ""
    """host:port for AMQP over TLS; "": none."""
    advertise: tuple[str, ...] = ()
    """host:port of all proxies, for clients that can fail over by themselves; none: they are not told."""
    port_file: str = ""
    """Where to write the port that was taken; "": nowhere."""
    workers: int = 1
    """Processes that share the port."""
    metrics_port: int = 0
    """Port of /metrics of the first worker, the others' follow; 0: none."""
    health_listen: str = ""
    """host:port at which the first worker tells of its health by gRPC, the others' ports follow; "": nowhere."""
    start_seconds: float = START_SECONDS
    """How long it waits at its start for a broker to answer; then it ends."""
    create_queues: bool = True
    """A queue that a client names and that is nowhere is declared."""
    create_topics: bool = True
    security: SecuritySettings = field(default_factory=SecuritySettings)
    limits: ProxyLimits = field(default_factory=ProxyLimits)


def parse_arguments(arguments: Sequence[str] | None = None) -> ProxySettings:
    """Raises `SystemExit`, with a usage line, for arguments that are none."""
    limits = ProxyLimits()
    parser = argparse.ArgumentParser(prog="services.proxy", description="AMQP 1.0 for clients of Lockstep.")
    parser.add_argument("--brokers", required=True, metavar="HOST:PORT[,...]")
    parser.add_argument("--listen", default=LISTEN, type=listen_address, metavar="HOST:PORT")
    parser.add_argument("--listen-tls", default="", type=listen_address_or_none, metavar="HOST:PORT")
    parser.add_argument(
        "--advertise", default="", metavar="HOST:PORT[,...]", help="all proxies, for failover"
    )
    parser.add_argument("--port-file", default="", metavar="PATH")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--metrics-port", type=port_or_none, default=0, metavar="PORT")
    parser.add_argument(
        "--health-listen", default="", type=listen_address_or_none, metavar="HOST:PORT", help="gRPC health"
    )
    parser.add_argument(
        "--start-seconds",
        type=float,
        default=START_SECONDS,
        metavar="N",
        help="how long to wait for a broker that answers",
    )
    parser.add_argument("--no-create-queues", dest="create_queues", action="store_false")
    parser.add_argument("--no-create-topics", dest="create_topics", action="store_false")
    parser.add_argument("--idle-seconds", type=float, default=limits.idle_seconds, metavar="N")
    parser.add_argument("--transaction-seconds", type=float, default=limits.transaction_seconds, metavar="N")
    parser.add_argument("--hold-seconds", type=float, default=limits.hold_seconds, metavar="N")
    parser.add_argument("--link-credit", type=int, default=limits.link_credit, metavar="N")
    add_security_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        security = security_of(given)
    except ValueError as error:
        parser.error(str(error))
    brokers = _addresses(given.brokers)
    if not brokers:
        parser.error("--brokers: no address")
    if given.workers < 1:
        parser.error("--workers is at least 1")
    if bool(given.listen_tls) != (security.tls is not None):
        parser.error("--listen-tls and --tls-certificate go together")
    if (
        min(given.start_seconds, given.idle_seconds, given.hold_seconds, given.link_credit) <= 0
        or given.transaction_seconds < 0
    ):
        parser.error("times and credit are positive")
    return ProxySettings(
        brokers=brokers,
        listen=given.listen,
        listen_tls=given.listen_tls,
        advertise=_addresses(given.advertise),
        port_file=given.port_file,
        workers=given.workers,
        metrics_port=given.metrics_port,
        health_listen=given.health_listen,
        start_seconds=given.start_seconds,
        create_queues=given.create_queues,
        create_topics=given.create_topics,
        security=security,
        limits=ProxyLimits(
            idle_seconds=given.idle_seconds,
            transaction_seconds=given.transaction_seconds,
            hold_seconds=given.hold_seconds,
            link_credit=given.link_credit,
        ),
    )


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(address.strip() for address in text.split(",") if address.strip())
