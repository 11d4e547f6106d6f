"""The state snapshot in RocksDB: items, and the meta that says what they are the state of.

Law: batches are atomic, and a crash leaves a prefix of them, because they all go through one column family without a log of
its own: what a memtable held is lost as a whole, in the order of writing, and the journal has it still. `flush` makes all of
them durable. A database that had an error is closed, for RocksDB refuses to write after one, and with it goes what was not
flushed: it is opened anew by whoever reads its meta, or clears it, and everything else fails until then.
"""

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path

from rocksdict import DBCompressionType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from lockstep.core.store_protocol import StateItem
from services.store.direct_io import takes_direct_io
from services.store.directories import sync_directory

_META = b"\x00meta"
_ITEM = b"i"
"""Prefix of items' keys; nothing comes behind them."""
_MEMTABLE_BYTES = 32 << 20
"""Half of a segment: what is consolidated between two flushes mostly fits one."""
_ITEM_BYTES = 256
"""What an item counts beside its bytes when a part is read: places in a queue are small and many, and each takes whoever gets
them as long as 256 bytes of content.
"""
_READAHEAD_BYTES = 1 << 20
"""At most."""
_TOMBSTONES_WINDOW, _TOMBSTONES_MAX = 32_768, 16_384
"""A file in which so many of so many neighbours are tombstones is compacted. An iterator needs about 20 ms for that many; fewer
would rewrite a big snapshot more often.
"""
_BACKGROUND_BYTES_PER_SECOND = 100 << 20
"""Flushes and compactions write at most so fast: a disk that is given more at once holds up the syncs of appends."""
_BACKGROUND_TURN_US, _BACKGROUND_FAIRNESS = 50_000, 10


class SnapshotCorrupt(Exception):
    """RocksDB says that its files are not what it wrote."""


class SnapshotFailed(OSError):
    """Any other error of RocksDB, an I/O error most likely."""


class SnapshotDb:
    """One set's snapshot. Opened when first used; several threads may use it, as RocksDB allows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: Rdict | None = None
        self._lock = threading.Lock()
        self._is_given_up = False
        """There was an error, and nobody has read since what is left."""

    def read_meta(self) -> bytes:
        self._is_given_up = False
        if not self._path.exists() or not any(self._path.iterdir()):
            return b""
        return self._get(_META) or b""

    def read_items(self, from_key: bytes, bytes_max: int) -> tuple[tuple[StateItem, ...], bool]:
        """About `bytes_max` bytes of items, and whether they are the last."""
        items: list[StateItem] = []
        size, new = 0, tuple.__new__  # Half the time of `StateItem(...)`, and there are millions.
        try:
            for key, value in self._open().items(from_key=_ITEM + from_key, read_opt=_scanning(bytes_max)):
                if size >= bytes_max:
                    return tuple(items), False
                assert type(key) is bytes  # in raw mode all are
                items.append(new(StateItem, (key[1:], value, True)))
                size += len(key) + len(value) + _ITEM_BYTES
            if why := self._why_ended(_ITEM + (items[-1].key + b"\0" if items else from_key)):
                raise SnapshotCorrupt(why) if _is_corruption(why) else _failed(why)
        except Exception as error:
            raise self._translated(error) from error
        return tuple(items), True

    def _why_ended(self, key: bytes) -> str:
        """What kept an iteration from going on at `key`, "" if nothing is there: at an error it ends as at the last item.

        Text, and no exception: with one its frames would keep the iterator, and an iterator keeps the database's lock.
        """
        iterator = self._open().iter(_scanning(_ITEM_BYTES))
        iterator.seek(key)
        if iterator.valid():
            return "an iteration ended before the last item"
        try:
            iterator.status()
        except Exception as error:
            return str(error)
        return ""

    def read_values(self, keys: tuple[bytes, ...]) -> tuple[bytes | None, ...]:
        if not keys:
            return ()
        if not self._path.exists():
            return (None,) * len(keys)
        return tuple(self._get(_ITEM + key) for key in keys)

    def write(self, puts: tuple[StateItem, ...], deletes: tuple[bytes, ...], meta: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        for item in puts:
            batch.put(_ITEM + item.key, item.value)
        for key in deletes:
            batch.delete(_ITEM + key)
        if meta:
            batch.put(_META, meta)
        options = WriteOptions()
        options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; its stub says method
        try:
            self._open().write(batch, options)
        except Exception as error:
            raise self._translated(error) from error

    def flush(self) -> None:
        try:
            self._open().flush(True)
        except Exception as error:
            raise self._translated(error) from error

    def clear(self) -> None:
        """Delete everything, durably."""
        self.close()
        # First away as a whole: a crash in between must not leave a part of it under its name.
        doomed = self._path.with_name("snapshot.doomed")
        shutil.rmtree(doomed, ignore_errors=True)
        if self._path.is_dir():
            self._path.rename(doomed)
            sync_directory(self._path.parent)
            shutil.rmtree(doomed, ignore_errors=True)
        self._is_given_up = False

    def close(self) -> None:
        """Closing flushes, and what a disk with an error did not take is lost, as at every crash."""
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(Exception):  # RocksDB's errors have no type of their own.
                database.close()

    def _get(self, key: bytes) -> bytes | None:
        try:
            value = self._open().get(key)
        except Exception as error:
            raise self._translated(error) from error
        return bytes(value) if value is not None else None

    def _open(self) -> Rdict:
        with self._lock:
            if self._is_given_up:
                raise SnapshotFailed("an error before may have taken what was not flushed")
            if self._database is None:
                # RocksDB syncs names inside of its directory, not the directory's own.
                self._path.mkdir(exist_ok=True)
                sync_directory(self._path.parent)
                options = Options(raw_mode=True)
                options.create_if_missing(True)
                options.set_paranoid_checks(True)
                options.set_compression_type(DBCompressionType.none())
                options.set_write_buffer_size(_MEMTABLE_BYTES)
                options.set_max_background_jobs(2)
                is_direct = takes_direct_io(self._path)
                options.set_use_direct_io_for_flush_and_compaction(is_direct)
                options.set_use_direct_reads(is_direct)
                options.set_ratelimiter(
                    _BACKGROUND_BYTES_PER_SECOND, _BACKGROUND_TURN_US, _BACKGROUND_FAIRNESS
                )
                options.set_keep_log_file_num(1)
                options.set_max_log_file_size(1 << 20)
                # Long runs of tombstones, as the head of a queue leaves them, are compacted away: an iterator would walk over
                # each of them, as slowly as over a living item and with the GIL held.
                options.add_compact_on_deletion_collector_factory(_TOMBSTONES_WINDOW, _TOMBSTONES_MAX, 0.0)
                self._database = Rdict(str(self._path), options)
            return self._database

    def _translated(self, error: Exception) -> Exception:
        """RocksDB's errors come as plain exceptions with a text."""
        if isinstance(error, OSError | SnapshotCorrupt):
            return error
        self._is_given_up = True
        self.close()
        text = str(error)
        return SnapshotCorrupt(text) if _is_corruption(text) else _failed(text)


def _failed(text: str) -> SnapshotFailed:
    """With the error of the operating system that the text ends with, where it matters which one it is."""
    failed = SnapshotFailed(text)
    failed.errno = next((number for number in (errno.ENOSPC, errno.EIO) if os.strerror(number) in text), None)
    return failed


def _is_corruption(text: str) -> bool:
    return "orruption" in text or "checksum" in text.lower()


def _scanning(bytes_max: int) -> ReadOptions:
    """For reading so much: what is read is not wanted again, and of a big piece the next one is."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg]  # its stub lacks the argument
    options.set_readahead_size(min(bytes_max, _READAHEAD_BYTES))
    return options
