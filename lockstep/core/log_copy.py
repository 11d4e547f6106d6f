"""One replica's copy of the log in memory: the state, and the frames behind it that are not applied yet.

Law: on a backup the state stands at the commit index and the suffix holds what lies behind it, which a new epoch may cut (R5,
R11). It is handed from role to role: a promoted backup applies its whole suffix and becomes the primary's log.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from lockstep.core.epoch_table import EpochTable, LogOutline
from lockstep.core.frames import BadFrame, Frame
from lockstep.core.ids import Epoch, LogIndex
from lockstep.core.items import Item
from lockstep.core.resident_bodies import ResidentBodies
from lockstep.core.restoration import TAKEN_IN_ONE, UNLIMITED_BYTES, Restoration
from lockstep.core.set_state import RECORD_COST, SetState
from lockstep.core.state_captures import LOOKED_AT
from lockstep.core.taking_apart import cost_of_bytes, emptied

_COST_SHIFT = 5
"""Bytes of a frame that cost as much as a unit: were all of them positions of messages, less than that."""


class CannotApply(Exception):
    """The records of a frame cannot be applied: what they were applied to may have a part of them, and is good for nothing."""

    def __init__(self, frame: Frame, error: Exception) -> None:
        self.first, last = frame.header.first, frame.header.last
        super().__init__(f"frame {self.first}..{last} cannot be applied: {error!r}")


class LogCopy:
    """Lives as long as one replica's memory of one resource set; a role core owns it at any time, and has the state cleared in
    pieces (`Clearing.turns`).
    """

    def __init__(
        self,
        state: SetState,
        commit_index: LogIndex,
        retained_bytes_max: int,
        resident_bytes_max: int = UNLIMITED_BYTES,
    ) -> None:
        self.state = state
        state.clearing.is_in_pieces = True
        self.bodies = ResidentBodies(state, resident_bytes_max)
        self.suffix: deque[Frame] = deque()
        self.commit_index = commit_index
        """Highest known; may lie beyond `log_end` while frames are on their way."""
        self.retained: deque[Frame] = deque()
        """Frames kept after they were applied, for backups to come if this replica is promoted; the suffix follows them."""
        self.transients_from = state.applied
        """Of kept frames only those behind this index have their transient parts: a disk gives back durable ones (R12)."""
        self.is_durable_only = False
        """The state holds nothing that is not durable: it comes from a disk."""
        self._aside: tuple[Restoration, SetState] | None = None
        """Beside the state, while transients are forgotten: what is to take its place, or what it has taken the place of."""
        self._applying: Iterator[int] | None = None
        """The first frame of the suffix, of which a part is applied."""
        self.retained_bytes = 0
        """Of the frames that are retained."""
        self._retained_bytes_max = retained_bytes_max
        self._resident_bytes_max = resident_bytes_max

    @property
    def log_end(self) -> LogIndex:
        """Last index that this copy holds, applied or not."""
        return self.suffix[-1].header.last if self.suffix else self.state.applied

    def outline(self) -> LogOutline:
        """Of the whole copy, the suffix included."""
        known, suffix = self.state.epochs, self.suffix
        table = EpochTable(known.entries, known.reigns)
        at = 0
        while at < len(suffix):
            header = suffix[at].header
            if header.epoch != table.last or header.reign != table.last_reign:
                table.observe(header.epoch, header.first, header.reign)
            at = bisect_right(suffix, header.epoch, at, key=_epoch_of)
        return table.outline(self.log_end)

    def append(self, frame: Frame) -> None:
        """Add the next frame; raises `BadFrame`, and changes nothing, if it does not begin right behind `log_end`."""
        header = frame.header
        if header.first != self.log_end + 1:
            raise BadFrame(f"frame {header.first}..{header.last} does not follow {self.log_end}")
        self.suffix.append(frame)

    def cut(self, after: LogIndex) -> None:
        """Drop what lies behind `after`; never anything applied, nor a frame of which a part is."""
        while self.suffix and self.suffix[-1].header.last > after:
            assert self.suffix[-1].header.first > after, "a cut falls between frames"
            assert self._applying is None or len(self.suffix) > 1, "applied records cannot be cut"
            self.suffix.pop()
        assert self.log_end <= after, "applied records cannot be cut"

    def learn(self, commit_index: LogIndex) -> None:
        """So much is committed; who drives this copy applies it."""
        self.commit_index = max(self.commit_index, commit_index)

    def commit(self, commit_index: LogIndex, between: Callable[[], object] | None = None) -> None:
        """Learn of a commit index and apply what it covers; `between` is called before each transaction."""
        self.learn(commit_index)
        self.apply_to(self.commit_index, between=between)

    def apply_to(
        self, index: LogIndex, is_durable_only: bool = False, between: Callable[[], object] | None = None
    ) -> None:
        """Apply the suffix up to `index`, in whole frames; without transient parts where those are to come yet (R12). Raises
        `CannotApply`.
        """
        for _ in self.apply_in_steps(index, is_durable_only, between):
            pass

    def apply_in_steps(
        self, index: LogIndex, is_durable_only: bool = False, between: Callable[[], object] | None = None
    ) -> Iterator[int]:
        """The same, in steps that say what they cost (`Pieces`); who goes on with it another time begins it anew."""
        yield from self._finish_in_steps()
        while self.suffix and self.suffix[0].header.last <= index:
            frame = self.suffix[0]
            applied = frame._replace(transient=b"") if is_durable_only else frame
            self._applying = self.state.apply_in_steps(applied, between)
            yield from self._finish_in_steps()

    def apply_at_once(
        self, index: LogIndex, cost_max: int, between: Callable[[], object] | None = None
    ) -> bool:
        """The same in one step, if that costs little, as it nearly always does; False: nothing was done, or, where a record ends
        very much, not all of it.

        `cost_max`: in the units of `Pieces`.
        """
        suffix = self.suffix
        if self._applying is not None:
            return False
        cost = count = 0
        for frame in suffix:
            header = frame.header
            if header.last > index:
                break
            count += 1
            cost += RECORD_COST * (header.last - header.first + 1)
            cost += len(frame.durable) + len(frame.transient) >> _COST_SHIFT
            if cost > cost_max:
                return False
        for _ in range(count):
            spent = 0
            self._applying = self.state.apply_in_steps(suffix[0], between)
            try:
                for cost in self._applying:
                    spent += cost
                    if spent > cost_max:
                        return False
            except Exception as error:
                raise self._cannot_apply(error) from error
            self._end_frame()
        return True

    def _finish_in_steps(self) -> Iterator[int]:
        while self._applying is not None:
            try:
                cost = next(self._applying, None)
            except Exception as error:
                raise self._cannot_apply(error) from error
            if cost is None:
                self._end_frame()
            else:
                yield cost

    def _cannot_apply(self, error: Exception) -> Exception:
        """Of the first frame of the suffix; where memory lacked, nothing is said of it."""
        return error if isinstance(error, MemoryError) else CannotApply(self.suffix[0], error)

    def _end_frame(self) -> None:
        """All of the first frame of the suffix is applied."""
        self._applying = None
        self._retain(self.suffix.popleft())

    @property
    def is_amid_frame(self) -> bool:
        """Whether of a frame, which is committed, only a part is applied: the state is nobody's to see."""
        return self._applying is not None

    def is_behind(self, index: LogIndex) -> bool:
        """Whether frames up to `index` are here and not applied."""
        return bool(self.suffix) and self.suffix[0].header.last <= index

    def forget_transients(self) -> Iterator[int]:
        """Leave only what durable records built, for the transient items of a primary to be laid over it (R12), in steps that say
        what they cost (`Pieces`). Nobody changes the state meanwhile, and it is a new one then.
        """
        yield from self._finish_in_steps()
        if self.is_durable_only:
            return
        before, durable = self.state, SetState(self.state.set_name)
        restoration = Restoration(durable)
        self._aside = restoration, durable
        yield from before.clearing.until_cleared()
        some: list[Item] = []
        for item in before.items_in_pieces(transient=False, in_blocks=True):
            if item is None:
                yield LOOKED_AT
            else:
                some.append(item)
            if len(some) == TAKEN_IN_ONE:
                yield from restoration.take_in_steps(some)
                some = []
        yield from restoration.take_in_steps(some)
        yield from restoration.settle_in_steps()
        durable.epochs.learn(before.epochs.reigns)
        durable.clearing.is_in_pieces = True
        self.state, self.bodies = durable, ResidentBodies(durable, self._resident_bytes_max)
        self._aside, self.is_durable_only = (restoration, before), True
        yield from self._take_aside_apart()

    def _take_aside_apart(self) -> Iterator[int]:
        if self._aside is not None:
            restoration, state = self._aside
            yield from restoration.take_apart()
            yield from state.take_apart()
            self._aside = None

    def take_apart(self) -> Iterator[int]:
        """Nobody has this memory any more: leave nothing of it, in steps that say what they cost (`taking_apart`)."""
        yield from self._take_aside_apart()
        yield from self.state.take_apart()
        for frames in (self.retained, self.suffix):
            yield from emptied(frames, _cost_of)

    def frames_after(self, index: LogIndex) -> deque[Frame]:
        """The frames behind `index` that are kept, oldest first; they reach from `index` + 1 on only if so much is kept."""
        found = deque[Frame]()
        for frames in (self.retained, self.suffix):
            found += islice(frames, bisect_right(frames, index, key=_first_of), None)
        return found

    def _retain(self, frame: Frame) -> None:
        """Keep a frame that was applied; the oldest go, but never one behind the commit index, which a member may lack."""
        self.retained.append(frame)
        self.retained_bytes += len(frame.durable) + len(frame.transient)
        while (
            self.retained_bytes > self._retained_bytes_max
            and self.retained[0].header.last <= self.commit_index
        ):
            oldest = self.retained.popleft()
            self.retained_bytes -= len(oldest.durable) + len(oldest.transient)


def _first_of(frame: Frame) -> LogIndex:
    return frame.header.first


def _epoch_of(frame: Frame) -> Epoch:
    return frame.header.epoch


def _cost_of(frame: Frame) -> int:
    """Of letting it go."""
    return cost_of_bytes(len(frame.durable) + len(frame.transient))
