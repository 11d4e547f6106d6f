"""Which file systems make a write durable by itself."""

import errno
import os
from pathlib import Path

import pytest

from services.store import set_directory, synced_writes
from services.store.core.disk import CreateSegment, WriteSegment
from services.store.set_directory import SetDirectory
from services.store.synced_writes import can_sync_with_write


def test_what_is_not_known_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, is_known in (
        ("ext4", True),
        ("xfs", True),
        ("virtiofs", False),
        ("fuse.sshfs", False),
        ("", False),
    ):
        monkeypatch.setattr(synced_writes, "filesystem_of", lambda _, kind=kind: kind)
        assert can_sync_with_write(tmp_path) is is_known

    def no_table(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(synced_writes, "filesystem_of", no_table)
    assert not can_sync_with_write(tmp_path)


@pytest.mark.parametrize("in_one_call", [True, False])
def test_a_group_is_synced_once_in_one_call_or_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_one_call: bool
) -> None:
    monkeypatch.setattr(set_directory, "can_sync_with_write", lambda _: in_one_call)
    directory = SetDirectory(tmp_path / "set", is_prefilled=False, give_up_kept=lambda: None)
    directory.read_meta()
    directory.create_segment(CreateSegment(1, 1 << 16, b"header", 0))
    calls: list[object] = []
    real_write, real_sync = os.pwritev, os.fdatasync

    def write(descriptor: int, parts: list[memoryview], offset: int, flags: int = 0) -> int:
        calls.append(flags)
        return real_write(descriptor, parts, offset, flags)

    def sync(descriptor: int) -> None:
        calls.append("fdatasync")
        real_sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", write)
        patch.setattr(os, "fdatasync", sync)
        directory.write_segment(WriteSegment(1, 100, (b"group",)), is_synced=True)
    assert calls == ([os.RWF_DSYNC] if in_one_call else [0, "fdatasync"])

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "a bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev" if in_one_call else "fdatasync", failing)
        with pytest.raises(OSError, match="a bad sector"):
            directory.write_segment(WriteSegment(1, 100, (b"group",)), is_synced=True)
    directory.close()
