"""The committed log of each resource set, as the brokers themselves claim it, and whether their claims agree (P2, P4).

Law: `(index, epoch)` names one content for ever, where an etcd that was set back let an epoch begin twice with the reign of
whoever wrote it; and what one process has called committed, no other may ever contradict. Every message that carries a commit
index is such a claim, checked against the log that its sender holds.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from lockstep.core.epoch_table import UNKNOWN_REIGN, EpochStarts, Reigns
from lockstep.core.frames import Frame, FrameHeader, decode_header, decode_records, read_frame
from lockstep.core.ids import Epoch, LogIndex, SetName
from tests.simulation.history import PromiseBroken
from tests.simulation.log_model import LogModel


@dataclass(slots=True)
class HeldLog:
    """The log that one broker process holds: frames by first index, in order."""

    name: str
    firsts: list[int] = field(default_factory=list)
    frames: dict[int, tuple[FrameHeader, bytes]] = field(default_factory=dict)
    """First index -> (header, durable part)."""
    claimed: int = 0
    """Highest commit index that it was held to."""

    def add(self, header: FrameHeader, durable: bytes) -> None:
        first = header.first
        known = self.frames.get(first)
        if known is not None and known[1] == durable:
            return
        self.cut(first - 1)
        self.firsts.append(first)
        self.frames[first] = header, durable

    def cut(self, after: int) -> None:
        while self.firsts and self.firsts[-1] > after:
            del self.frames[self.firsts.pop()]
        self.claimed = min(self.claimed, after)

    def clear(self) -> None:
        self.firsts.clear()
        self.frames.clear()


class CommittedLog:
    """One resource set's; lives as long as the world."""

    def __init__(self, set_name: SetName) -> None:
        self.set_name = set_name
        self.end = LogIndex(0)
        self._committed: dict[int, tuple[bytes, str]] = {}
        """First index -> (durable part, who claimed it first)."""
        self._firsts: list[int] = []
        self._contents: dict[tuple[int, int, int], bytes] = {}
        """(first index, epoch, reign) -> durable part."""
        self._transients: dict[tuple[int, int, int], bytes] = {}

    def seen(self, durable: bytes, transient: bytes | None) -> FrameHeader:
        """Somebody holds this frame: (index, epoch, reign) must name one content. Returns its header."""
        header = decode_header(durable)
        key = (header.first, header.epoch, header.reign)
        known = self._contents.setdefault(key, durable)
        if known is not durable and known != durable:
            raise PromiseBroken(
                "P2", f"index {header.first} of epoch {header.epoch} in {self.set_name} names two contents"
            )
        if transient:  # a replica that loaded the frame from a journal has none to pass on (R12)
            before = self._transients.setdefault(key, transient)
            if before is not transient and before != transient:
                raise PromiseBroken(
                    "P2",
                    f"index {header.first} of epoch {header.epoch} in {self.set_name} names two transient contents",
                )
        return header

    def install(self, held: HeldLog, index: LogIndex, epochs: EpochStarts, reigns: Reigns) -> bool:
        """The holder of `held` took a snapshot at `index`, whose log has these epochs from these indexes on, by these reigns.
        Answers whether that is beyond what anybody has called committed.

        It stands for the frames that it was made of: what of them nobody has called committed yet, its holder may.
        """
        held.clear()
        held.claimed = min(index, self.end)
        is_beyond = index > self.end
        first, known = self.end + 1, dict(reigns)
        while first <= index:
            place = bisect_right(epochs, first, key=lambda pair: pair[1]) - 1
            epoch = epochs[place][0]
            durable = self._contents.get((first, epoch, known.get(epoch, UNKNOWN_REIGN)))
            if durable is None:
                break
            header = decode_header(durable)
            held.add(header, durable)
            first = header.last + 1
        return is_beyond

    def claim(self, held: HeldLog, commit_index: int) -> None:
        """The holder of `held` called everything up to `commit_index` committed."""
        if commit_index <= held.claimed:
            return
        place = bisect_right(held.firsts, held.claimed)
        while place < len(held.firsts):
            first = held.firsts[place]
            header, durable = held.frames[first]
            if header.last > commit_index:
                break
            self._commit(header, durable, held.name)
            place += 1
            held.claimed = header.last

    def _commit(self, header: FrameHeader, durable: bytes, by: str) -> None:
        first, last, epoch = header.first, header.last, header.epoch
        known = self._committed.get(first)
        if known is not None:
            if known[0] is not durable and known[0] != durable:
                other = decode_header(known[0])
                raise PromiseBroken(
                    "P4",
                    f"{by} holds epoch {epoch} at index {first} of {self.set_name} as committed, "
                    f"where {known[1]} had committed epoch {other.epoch}",
                )
        elif first == self.end + 1:
            self._committed[first] = (durable, by)
            self._firsts.append(first)
            self.end = LogIndex(last)
        elif first <= self.end:
            raise PromiseBroken(
                "P4",
                f"{by} holds as committed a frame at index {first} of {self.set_name} where none was committed",
            )
        # Else it is ahead of what could be read off so far: whoever holds the log in between will be held to it.

    def check_journal(self, durables: list[bytes], holder: str) -> None:
        """A journal's frames up to the committed end must be the committed ones."""
        for durable in durables:
            header = self.seen(durable, None)
            if header.last <= self.end:
                self._commit(header, durable, holder)

    def loss_accepted(self, after: LogIndex) -> None:
        """An operator gave up what lies behind `after` (R7): from here on it counts as never committed."""
        while self._firsts and self._firsts[-1] > after:
            del self._committed[self._firsts.pop()]
        self.end = min(self.end, after)

    def frames(self) -> list[Frame]:
        """The committed frames, with their transient parts as far as anybody was sent them."""
        found = []
        for first in self._firsts:
            durable = self._committed[first][0]
            header = decode_header(durable)
            transient = self._transients.get((first, header.epoch, header.reign), b"")
            found.append(read_frame(durable, transient))
        return found

    def model(self) -> LogModel:
        """What the committed log means."""
        model = LogModel()
        for frame in self.frames():
            for indexed in decode_records(frame):
                model.apply(indexed, Epoch(frame.header.epoch))
        return model
