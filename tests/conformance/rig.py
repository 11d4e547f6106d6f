"""The rig of the DTX contract: the verbs as the contract's rows use them, on whatever cluster is behind it.

Law: a row is a plain function of a rig; it says what it does and what is answered, and nothing of the cluster. Answers are an
`XaStatus`, or the number of the exception of AMQP 0-10 that the rejection stands for.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count

from lockstep.core.errors import ErrorCode
from lockstep.core.xa import EXCEPTIONS, XaStatus
from lockstep.core.xid import Xid

Answer = int
"""An `XaStatus` (0 to 7), an exception's number (404 and so on), or beyond 1000 another `ErrorCode`."""
OTHER_CODES = 1000
FORMAT_ID = 7


def answer_of(code: ErrorCode, value: int) -> Answer:
    """What a verb answered."""
    if code is ErrorCode.NONE:
        return XaStatus(value)
    return EXCEPTIONS.get(code, OTHER_CODES + code)


class Rig(ABC):
    """Lives for one row. Sessions are named by the row; each is a client of its own."""

    def __init__(self) -> None:
        self._xids = count(1)

    def xid(self) -> bytes:
        """A new branch's name."""
        return Xid(FORMAT_ID, b"row", b"%d" % next(self._xids)).encode()

    # --- sessions and messages ---

    @abstractmethod
    def session(self, name: str = "s1", dtx: bool = True, hears_read_only: bool = False) -> str:
        """Open a session, which selects dtx unless told otherwise; answers its name."""

    @abstractmethod
    def close(self, session: str) -> None:
        """End a session on purpose."""

    @abstractmethod
    def publish(
        self,
        session: str,
        queue: str,
        bodies: Sequence[bytes],
        xid: bytes | None = None,
        durable: bool = True,
    ) -> None:
        """Publish messages, in a branch if one is named, and wait until they are taken."""

    @abstractmethod
    def take(
        self, session: str, queue: str, number: int, xid: bytes | None = None
    ) -> list[tuple[bytes, int]]:
        """Consume so many messages and accept them, in a branch if one is named; (body, delivery count) of each."""

    @abstractmethod
    def bodies(self, queue: str) -> list[bytes]:
        """What a browser sees: what is locked too, and not what is not committed."""

    @abstractmethod
    def free(self, queue: str) -> int:
        """Messages that could be delivered: those that nobody has and no branch has locked."""

    # --- verbs ---

    @abstractmethod
    def start(self, session: str, xid: bytes, *, join: bool = False, resume: bool = False) -> Answer: ...

    @abstractmethod
    def end(self, session: str, xid: bytes, *, fail: bool = False, suspend: bool = False) -> Answer: ...

    @abstractmethod
    def prepare(self, session: str, xid: bytes) -> Answer: ...

    @abstractmethod
    def commit(
        self, session: str, xid: bytes, *, one_phase: bool = False, lose_answer: bool = False
    ) -> Answer:
        """`lose_answer`: the connection breaks behind the answer's back, and the session hears it when it asks again."""

    @abstractmethod
    def rollback(self, session: str, xid: bytes) -> Answer: ...

    @abstractmethod
    def forget(self, session: str, xid: bytes) -> Answer: ...

    @abstractmethod
    def end_heuristically(self, session: str, xid: bytes, commit: bool) -> Answer: ...

    @abstractmethod
    def set_timeout(self, session: str, xid: bytes, seconds: int) -> Answer: ...

    @abstractmethod
    def get_timeout(self, session: str, xid: bytes) -> Answer | str:
        """The seconds as text ("60 s"), or the exception."""

    @abstractmethod
    def recover(self, session: str) -> list[bytes]: ...

    # --- what happens ---

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    @abstractmethod
    def kill_primary(self) -> None:
        """SIGKILL of the primary, when all others are in sync; returns when its successor serves (itself, if it is alone)."""

    @abstractmethod
    def restart_all(self) -> None:
        """SIGKILL of everything, and a start of everything; returns when the set is served."""

    @abstractmethod
    def refuse(self, xid: bytes) -> None:
        """A backup votes no while the branch is open; returns when that has been heard."""

    # --- what rows are made of ---

    def prepared(self, session: str, queue: str = "q", bodies: Sequence[bytes] = (b"in branch",)) -> bytes:
        """A prepared branch that publishes."""
        xid = self.ended(session, queue, bodies)
        assert self.prepare(session, xid) == XaStatus.OK
        return xid

    def ended(self, session: str, queue: str = "q", bodies: Sequence[bytes] = (b"in branch",)) -> bytes:
        """A branch that publishes, ended and ready to be prepared."""
        xid = self.active(session, queue, bodies)
        assert self.end(session, xid) == XaStatus.OK
        return xid

    def active(self, session: str, queue: str = "q", bodies: Sequence[bytes] = (b"in branch",)) -> bytes:
        """A branch that publishes, and in which the session works."""
        xid = self.xid()
        assert self.start(session, xid) == XaStatus.OK
        if bodies:
            self.publish(session, queue, bodies, xid)
        return xid
