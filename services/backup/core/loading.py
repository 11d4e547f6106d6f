"""Loading: a replica's memory from its own disk, by what `LoadState` answers (DESIGN 5, R9).

Law: only what the commit index covers is applied; the rest of the journal is a suffix that a new primary may cut (R11). Whatever
the disk gives back, nothing is raised: other sets of this process go on.
"""

from collections import deque
from collections.abc import Iterator

from lockstep.core.epoch_table import Reigns
from lockstep.core.frames import Frame, check_frame
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.log_copy import CannotApply, LogCopy
from lockstep.core.resident_bodies import TURN_COST
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateChunk
from services.backup.core.settings import BackupSettings

FRAME_BYTES_EACH = 1000
"""Of a frame, for each microsecond that its checksum takes."""


class Loading:
    """Lives from `LoadState` until all that it answered is in memory; driven by the backup core."""

    def __init__(
        self,
        set_name: SetName,
        commit_index: LogIndex,
        log_end: LogIndex,
        reigns: Reigns,
        settings: BackupSettings,
    ) -> None:
        """`commit_index`, `log_end`, `reigns`: as the store told them when it opened the set."""
        self._commit_index = commit_index
        self._log_end = log_end
        self._reigns = reigns
        self._settings = settings
        self._state = SetState(set_name)
        self._restoration: Restoration | None = None
        """While items come; each is restored at once, so that no single input takes long."""
        self._copy: LogCopy | None = None
        self._waiting: deque[StateChunk] = deque()
        self._loaded_end: LogIndex | None = None
        """All of it has come, up to here."""
        self._is_working = False
        self._is_given_up = False
        self.failure = ""
        """Why what came is no memory; "": nothing is wrong with it so far."""
        self.failed_from = LogIndex(0)
        """Where in the log that begins, before which all was of use; 0: in what the snapshot has."""

    def take(self, chunk: StateChunk) -> None:
        """One part: items first, then frames."""
        self._waiting.append(chunk)

    def took_all(self, log_end: LogIndex) -> None:
        """There is no more."""
        self._loaded_end = log_end

    def work(self) -> Iterator[int]:
        """What has come becomes memory, in steps that say what they cost (`Pieces`); nothing if that is under way already."""
        if self._is_working:
            return
        self._is_working = True
        try:
            for cost in self._take_all():
                yield cost
                if self._is_given_up:
                    return
        except MemoryError:
            raise
        except CannotApply as error:
            self.failure, self.failed_from = str(error), error.first
            return
        except Exception as error:
            self.failure = repr(error)
            self.failed_from = LogIndex(self._copy.log_end + 1) if self._copy is not None else LogIndex(0)
            return
        self._is_working = False

    def give_up(self) -> None:
        """Nobody wants it any more: what is under way ends."""
        self._is_given_up = True

    def take_apart(self) -> Iterator[int]:
        """It was given up: leave nothing of it, in steps that say what they cost (`taking_apart`)."""
        if self._restoration is not None:
            yield from self._restoration.take_apart()
        yield from self._copy.take_apart() if self._copy is not None else self._state.take_apart()

    def _take_all(self) -> Iterator[int]:
        while self._waiting:
            chunk = self._waiting.popleft()
            yield from self._take_items(chunk)
            yield from self._take_frames(chunk)
        if self._loaded_end is not None:
            yield from self._settle()
            copy = self._copy
            if copy is not None and copy.log_end != self._loaded_end:
                raise ValueError(f"it ends at {copy.log_end}, and not at {self._loaded_end}")

    def _take_items(self, chunk: StateChunk) -> Iterator[int]:
        if not chunk.items:
            return
        if self._restoration is None:
            self._restoration = Restoration(self._state, self._settings.resident_body_bytes_max)
        yield from self._restoration.take_in_steps(chunk.items)

    def _take_frames(self, chunk: StateChunk) -> Iterator[int]:
        if not chunk.frames:
            return
        yield from self._settle()
        copy = self._copy
        assert copy is not None, "it is settled"
        for durable in chunk.frames:
            copy.append(Frame(check_frame(durable), durable, b""))
            yield len(durable) // FRAME_BYTES_EACH
        copy.learn(self._commit_index)
        yield from copy.apply_in_steps(self._commit_index)
        while copy.bodies.trim(self._log_end):
            yield TURN_COST

    def _settle(self) -> Iterator[int]:
        if self._restoration is not None:
            yield from self._restoration.settle_in_steps()
            self._state.epochs.learn(self._reigns)
            self._restoration = None
        if self._copy is None:
            settings = self._settings
            self._copy = LogCopy(
                self._state,
                self._commit_index,
                settings.retained_bytes_max,
                settings.resident_body_bytes_max,
            )

    @property
    def is_done(self) -> bool:
        """Whether all of it is in memory."""
        return self._loaded_end is not None and not self._is_working and not self._waiting

    def finish(self) -> LogCopy:
        """The memory as the disk has it: without anything that is not durable."""
        copy = self._copy
        assert copy is not None and self.is_done, "all of it is in memory"
        assert copy.log_end == self._loaded_end, f"loaded {copy.log_end} of {self._loaded_end}"
        copy.transients_from = copy.log_end
        copy.is_durable_only = True
        return copy
