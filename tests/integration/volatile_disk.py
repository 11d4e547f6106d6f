"""What a file system holds that forgets at a power loss whatever was not synced: the model behind `power_loss_fs.py`.

Law: after `lose_power` there is exactly what had been synced, and of the rest any part that a disk could have written by itself.

What it models:

- A file's data is durable when fsync or fdatasync of that file returned. Before it, each aligned sector of 512 bytes may hold the
  file's content after any number of the writes to it, none included, whatever other sectors hold: a big write may be torn,
  and a later write may be on the disk without an earlier one. A file grows to the end of the last sector that was kept.
- A change of size (truncate, O_TRUNC) is kept or not, in order; writes behind one that was not kept are lost.
- A name (created, removed, renamed) is durable when fsync of its directory returned, and not by fsync of the file. Before it, the
  changes of one directory are kept in their order up to some point; a rename is kept as a whole, also between two directories.
  So a file may be there with its name and without its data, or have its data and no name, or be back after its removal.
- A failed fsync has written any sectors of what it should have, and the rest will never be written. It is still read from the
  kernel's page cache until that is dropped, as on Linux.

What it does not model: sync_file_range, which syncs nothing here, and O_SYNC, which syncs nothing either; durability of modes and
times, which are kept at once; a disk that lies about fsync, unless it is told to (`is_lying`).
"""

import errno
import json
import os
import random
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
ROOT = 1


@dataclass(slots=True)
class Write:
    offset: int
    data: bytearray


@dataclass(slots=True)
class Resize:
    size: int


@dataclass(slots=True)
class Node:
    """A file or a directory. `pending` and `size` are a file's, `entries` and `durable_entries` a directory's."""

    number: int
    mode: int
    size: int = 0
    durable_size: int = 0
    pending: list[Write | Resize] = field(default_factory=list)
    entries: dict[str, int] = field(default_factory=dict)
    durable_entries: dict[str, int] = field(default_factory=dict)
    links: int = 0
    opened: int = 0

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


Rename = tuple[tuple[int, str, int | None], ...]
"""One change of names: (directory, name, node or None for: gone), all of it or nothing."""


@dataclass(slots=True)
class Loss:
    """What a power loss, or a failed fsync, took."""

    bytes_lost: int = 0
    bytes_kept: int = 0
    """Written and not synced, and on the disk all the same."""
    files_torn: int = 0
    """Of which a part was kept, and a part was not."""
    names_lost: int = 0
    names_kept: int = 0


class VolatileDisk:
    """Lives as long as the mount; durable content is in files of `backing`, all names in `names.json` there, at a power loss."""

    def __init__(self, backing: Path) -> None:
        self._backing = backing
        (backing / "data").mkdir(parents=True, exist_ok=True)
        self.nodes: dict[int, Node] = {ROOT: Node(ROOT, stat.S_IFDIR | 0o755, links=1)}
        self.renames: list[Rename] = []
        """Not yet durable, in their order."""
        self.used_bytes = 0
        self.is_lying = False
        """Answers fsync and does nothing: to show that the tests would see it."""
        self._files: dict[int, int] = {}
        self._load()

    # --- names ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Node:
        node = self.nodes[ROOT]
        for part in filter(None, path.split("/")):
            if not node.is_directory:
                raise OSError(errno.ENOTDIR, path)
            number = node.entries.get(part)
            if number is None:
                raise OSError(errno.ENOENT, path)
            node = self.nodes[number]
        return node

    def parent(self, path: str) -> tuple[Node, str]:
        directory, _, name = path.rpartition("/")
        return self.find(directory), name

    def make(self, path: str, mode: int) -> Node:
        """A new file or directory, by its mode."""
        directory, name = self.parent(path)
        if name in directory.entries:
            raise OSError(errno.EEXIST, path)
        node = Node(max(self.nodes) + 1, mode)
        self.nodes[node.number] = node
        self._rename(((directory.number, name, node.number),))
        return node

    def remove(self, path: str) -> None:
        directory, name = self.parent(path)
        node = self.find(path)
        if node.is_directory and node.entries:
            raise OSError(errno.ENOTEMPTY, path)
        self._rename(((directory.number, name, None),))

    def rename(self, old: str, new: str) -> None:
        source, old_name = self.parent(old)
        target, new_name = self.parent(new)
        node = self.find(old)
        replaced = target.entries.get(new_name)
        if replaced == node.number:
            return
        if replaced is not None and self.nodes[replaced].entries:
            raise OSError(errno.ENOTEMPTY, new)
        self._rename(((source.number, old_name, None), (target.number, new_name, node.number)))

    def _rename(self, change: Rename) -> None:
        before = [self.nodes[directory].entries.get(name) for directory, name, _ in change]
        for directory, name, number in change:
            _apply(self.nodes[directory].entries, name, number)
        for number in before:
            if number is not None:
                self.nodes[number].links -= 1
        for _, _, number in change:
            if number is not None:
                self.nodes[number].links += 1
        for number in before:
            if number is not None:
                self._account_end(self.nodes[number])
        self.renames.append(change)

    def sync_directory(self, directory: Node) -> None:
        """Its names are durable, and with them whatever a rename ties to them."""
        if not self.is_lying:
            self._keep_renames(lambda touched: directory.number in touched)

    def _keep_renames(self, is_kept: Callable[[set[int]], bool]) -> int:
        """Makes the chosen changes durable, and all earlier ones of the directories that they touch; answers how many."""
        kept: list[Rename] = []
        left: list[Rename] = []
        touched: set[int] = set()
        for change in reversed(self.renames):
            directories = {directory for directory, _, _ in change}
            if directories & touched or is_kept(directories):
                touched |= directories
                kept.append(change)
            else:
                left.append(change)
        for change in reversed(kept):
            for directory, name, number in change:
                _apply(self.nodes[directory].durable_entries, name, number)
        self.renames = left[::-1]
        return len(kept)

    # --- data -------------------------------------------------------------------------------------------------------

    def open(self, node: Node) -> None:
        node.opened += 1

    def close(self, node: Node) -> None:
        node.opened -= 1
        self._account_end(node)

    def _account_end(self, node: Node) -> None:
        if not node.links and not node.opened and not node.is_directory:
            self.used_bytes -= node.size
            node.size = 0

    def read(self, node: Node, size: int, offset: int) -> bytes:
        size = max(0, min(size, node.size - offset))
        if not size:
            return b""
        found = os.pread(self._file(node), max(0, min(size, node.durable_size - offset)), offset)
        if not node.pending:
            return found.ljust(size, b"\0")
        buffer = bytearray(found.ljust(size, b"\0"))
        for change in node.pending:
            if isinstance(change, Resize):
                start = max(0, change.size - offset)
                if start < size:
                    buffer[start:] = bytes(size - start)
                continue
            start, end = max(change.offset, offset), min(change.offset + len(change.data), offset + size)
            if start < end:
                buffer[start - offset : end - offset] = memoryview(change.data)[
                    start - change.offset : end - change.offset
                ]
        return bytes(buffer)

    def write(self, node: Node, data: bytes, offset: int) -> None:
        last = node.pending[-1] if node.pending else None
        if isinstance(last, Write) and last.offset + len(last.data) == offset:
            last.data += data
        else:
            node.pending.append(Write(offset, bytearray(data)))
        self._grow(node, max(node.size, offset + len(data)))

    def resize(self, node: Node, size: int) -> None:
        node.pending.append(Resize(size))
        self._grow(node, size)

    def _grow(self, node: Node, size: int) -> None:
        self.used_bytes += size - node.size
        node.size = size

    def sync(self, node: Node) -> None:
        if self.is_lying:
            return
        for change in node.pending:
            if isinstance(change, Write):
                _write_all(self._file(node), change.data, change.offset)
                node.durable_size = max(node.durable_size, change.offset + len(change.data))
            else:
                self._cut(node, change.size)
        node.pending.clear()

    def fail_sync(self, node: Node, chance: random.Random) -> None:
        """What an fsync leaves that ends with EIO."""
        self._keep_some(node, chance, Loss())

    # --- power loss -------------------------------------------------------------------------------------------------

    def lose_power(self, chance: random.Random, keeps_nothing: bool = False) -> Loss:
        """The end of this object: nothing but `backing` is left. `keeps_nothing`: the disk wrote nothing by itself."""
        loss = Loss()
        for number in sorted(self.nodes):
            node = self.nodes[number]
            if node.pending:
                self._keep_some(node, chance, loss, "nothing" if keeps_nothing else "")
        names = len(self.renames)
        odds = 0.0 if keeps_nothing else chance.choice((0.0, 0.1, 1.0))
        loss.names_kept = self._keep_renames(lambda _: chance.random() < odds)
        loss.names_lost = names - loss.names_kept
        self._save()
        return loss

    def unmount(self) -> None:
        """A clean end: everything is synced."""
        self.is_lying = False
        for node in list(self.nodes.values()):
            self.sync(node)
        self._keep_renames(lambda _: True)
        self._save()

    def _keep_some(self, node: Node, chance: random.Random, loss: Loss, style: str = "") -> None:
        """Makes durable what the disk wrote by itself, and forgets the rest."""
        style = style or chance.choice(("nothing", "torn", "torn", "all"))
        resizes = sum(isinstance(change, Resize) for change in node.pending)
        resizes_kept = {"nothing": 0, "all": resizes}.get(style, chance.randint(0, resizes))
        kept_before, lost_before = loss.bytes_kept, loss.bytes_lost
        writes: list[Write] = []
        seen = 0
        for change in node.pending:
            if isinstance(change, Write):
                writes.append(change)
                continue
            self._keep_sectors(node, writes if seen <= resizes_kept else [], style, chance, loss)
            writes = []
            seen += 1
            if seen <= resizes_kept:
                self._cut(node, change.size)
        if seen <= resizes_kept:
            self._keep_sectors(node, writes, style, chance, loss)
        else:
            loss.bytes_lost += sum(len(write.data) for write in writes)
        loss.files_torn += loss.bytes_kept > kept_before and loss.bytes_lost > lost_before
        node.pending.clear()

    def _keep_sectors(
        self, node: Node, writes: list[Write], style: str, chance: random.Random, loss: Loss
    ) -> None:
        sectors: dict[int, list[tuple[int, memoryview]]] = {}
        for write in writes:
            data, end = memoryview(write.data), write.offset + len(write.data)
            for sector in range(write.offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
                start = max(write.offset, sector * SECTOR_BYTES)
                stop = min(end, (sector + 1) * SECTOR_BYTES)
                piece = data[start - write.offset : stop - write.offset]
                sectors.setdefault(sector, []).append((start, piece))
        for pieces in sectors.values():
            count = {"nothing": 0, "all": len(pieces)}.get(style, chance.randint(0, len(pieces)))
            for place, (start, piece) in enumerate(pieces):
                if place < count:
                    _write_all(self._file(node), piece, start)
                    node.durable_size = max(node.durable_size, start + len(piece))
                    loss.bytes_kept += len(piece)
                else:
                    loss.bytes_lost += len(piece)

    def _cut(self, node: Node, size: int) -> None:
        os.ftruncate(self._file(node), size)
        node.durable_size = size

    # --- backing ----------------------------------------------------------------------------------------------------

    def _file(self, node: Node) -> int:
        if node.number not in self._files:
            path = self._backing / "data" / str(node.number)
            self._files[node.number] = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        return self._files[node.number]

    def _save(self) -> None:
        reached = self._reached()
        for number in self.nodes.keys() - reached:
            (self._backing / "data" / str(number)).unlink(missing_ok=True)
        saved = {
            number: (node.mode, node.durable_size, node.durable_entries)
            for number, node in self.nodes.items()
            if number in reached
        }
        (self._backing / "names.json").write_text(json.dumps(saved))

    def _reached(self) -> set[int]:
        reached, waiting = {ROOT}, [ROOT]
        while waiting:
            new = set(self.nodes[waiting.pop()].durable_entries.values()) - reached
            reached |= new
            waiting += new
        return reached

    def _load(self) -> None:
        path = self._backing / "names.json"
        if not path.exists():
            return
        for number, (mode, size, entries) in json.loads(path.read_text()).items():
            self.nodes[int(number)] = Node(
                int(number), mode, size, size, entries=dict(entries), durable_entries=dict(entries)
            )
            self.used_bytes += size
        for node in self.nodes.values():
            for number in node.entries.values():
                self.nodes[number].links += 1
        self.nodes[ROOT].links = 1


def _apply(entries: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        entries.pop(name, None)
    else:
        entries[name] = number


def _write_all(descriptor: int, data: "bytes | bytearray | memoryview", offset: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def total(losses: Iterable[Loss]) -> Loss:
    """The sum of several losses."""
    summed = Loss()
    for loss in losses:
        for name in Loss.__slots__:
            setattr(summed, name, getattr(summed, name) + getattr(loss, name))
    return summed
