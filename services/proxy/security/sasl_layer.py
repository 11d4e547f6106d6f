"""SASL layer: what runs on a connection before AMQP does, until it is known whom the connection speaks for (AMQP 1.0, 5.3).

Law: nothing reaches the AMQP layer before somebody is authenticated, and nothing that a client sends raises.

    NEGOTIATING -> DONE     a login was accepted, or AMQP was begun without SASL where that is allowed
                -> FAILED   anything else; the caller sends what is outgoing, and closes

Sans-IO: no clock and no socket. Who drives it ends a negotiation that takes too long, and may wait before it closes one that
failed. A step of PLAIN takes some milliseconds of CPU; layers share nothing but the users, so `receive` may run in a thread.
"""

from collections.abc import Mapping
from enum import Enum

from services.proxy.security.identity import Identity
from services.proxy.security.sasl_frames import (
    AMQP_HEADER,
    FRAME_BYTES_MIN,
    HEADER_BYTES,
    SASL_HEADER,
    MalformedFrame,
    OutcomeCode,
    SaslInit,
    SaslResponse,
    challenge_frame,
    mechanisms_frame,
    outcome_frame,
    read_frame,
)
from services.proxy.security.sasl_login import Accepted, Challenge, Refused, SaslLogin, SaslMechanism

FRAME_BYTES_MAX = 4096
"""Of a frame from a client. AMQP 1.0, 5.3.1, allows 512, which a long password or token in PLAIN does not fit into."""
CHALLENGES_MAX = 4
"""In one negotiation: SCRAM takes one, and one more if the client did not send an initial response."""


class SaslState(Enum):
    NEGOTIATING = "negotiating"
    DONE = "done"
    FAILED = "failed"


class SaslLayer:
    """Of one connection, from its first byte to the end of SASL; driven by whoever reads the connection."""

    def __init__(
        self, mechanisms: Mapping[str, SaslMechanism], identity_without_sasl: Identity | None
    ) -> None:
        """`mechanisms`: offered by their names, the preferred ones first. `identity_without_sasl`: of a client that begins AMQP
        at once; None: that is refused. `mechanisms.sasl_layer` makes one from the settings.
        """
        self.state = SaslState.NEGOTIATING
        self.identity: Identity | None = None
        """Set with DONE."""
        self.failure = ""
        """Why it failed, for the log; nothing secret in it. Set with FAILED."""
        self._mechanisms = mechanisms
        self._identity_without_sasl = identity_without_sasl
        self._is_header_due = True
        self._login: SaslLogin | None = None
        """Set by sasl-init."""
        self._challenges = 0
        self._buffer = b""
        """Less than a header or a frame, between two calls."""
        self._outgoing = bytearray()

    def receive(self, data: bytes) -> bytes:
        """Takes what the client sent, in whatever pieces.

        Returns what belongs to the AMQP layer: once DONE the bytes behind the end of SASL, beginning with the AMQP header; else
        nothing. What comes after a failure is dropped.
        """
        self._buffer += data
        try:
            while self.state is SaslState.NEGOTIATING and self._take():
                pass
        except MalformedFrame as error:
            self._fail(f"malformed frame: {error}")
        if self.state is SaslState.NEGOTIATING:
            return b""
        rest, self._buffer = self._buffer, b""
        return rest if self.state is SaslState.DONE else b""

    def outgoing(self) -> bytes:
        """What is to be sent now, once; also after a failure, before the connection is closed."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def _take(self) -> bool:
        """Takes a header or frame from the buffer; False if there is no whole one. Raises `MalformedFrame`."""
        if self._is_header_due:
            return self._take_header()
        if len(self._buffer) < 4:
            return False
        size = int.from_bytes(self._buffer[:4])
        if not FRAME_BYTES_MIN <= size <= FRAME_BYTES_MAX:
            raise MalformedFrame(f"of {size} bytes")
        if len(self._buffer) < size:
            return False
        frame, self._buffer = self._buffer[:size], self._buffer[size:]
        match read_frame(frame):
            case SaslInit(mechanism, response):
                self._begin(mechanism, response)
            case SaslResponse(response):
                self._answer(response)
        return True

    def _take_header(self) -> bool:
        header = self._buffer[:HEADER_BYTES]
        if header == SASL_HEADER:
            self._buffer = self._buffer[HEADER_BYTES:]
            self._is_header_due = False
            self._outgoing += SASL_HEADER
            if self._mechanisms:
                self._outgoing += mechanisms_frame(tuple(self._mechanisms))
            else:
                self._fail("no mechanism can be offered on this connection")
            return True
        if header == AMQP_HEADER and self._identity_without_sasl is not None:
            # The header stays: the AMQP layer reads it.
            self._done(self._identity_without_sasl)
            return True
        if (
            any(known.startswith(header) for known in (SASL_HEADER, AMQP_HEADER))
            and len(header) < HEADER_BYTES
        ):
            return False
        # The answer to every other header is the one that is served (AMQP 1.0, 2.2).
        self._outgoing += SASL_HEADER
        without_sasl = header == AMQP_HEADER
        self._fail("AMQP without SASL" if without_sasl else f"protocol header {header.hex()}")
        return True

    def _begin(self, mechanism: str, response: bytes | None) -> None:
        if self._login is not None:
            raise MalformedFrame("a second sasl-init")
        offered = self._mechanisms.get(mechanism)
        if offered is None:
            self._refuse("a mechanism that was not offered")
            return
        self._login = offered()
        self._step(self._login, response)

    def _answer(self, response: bytes) -> None:
        if self._login is None:
            raise MalformedFrame("sasl-response before sasl-init")
        self._step(self._login, response)

    def _step(self, login: SaslLogin, response: bytes | None) -> None:
        match login.step(response):
            case Challenge(data):
                self._challenges += 1
                if self._challenges > CHALLENGES_MAX:
                    self._refuse("too many responses")
                else:
                    self._outgoing += challenge_frame(data)
            case Accepted(identity, additional_data):
                self._outgoing += outcome_frame(OutcomeCode.OK, additional_data)
                self._done(identity)
            case Refused(reason):
                self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        self._outgoing += outcome_frame(OutcomeCode.AUTH)
        self._fail(reason)

    def _done(self, identity: Identity) -> None:
        self.state, self.identity = SaslState.DONE, identity

    def _fail(self, reason: str) -> None:
        self.state, self.failure = SaslState.FAILED, reason
