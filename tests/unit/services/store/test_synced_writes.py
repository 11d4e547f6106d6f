"""Which file systems make a write durable by itself."""

import errno
import os
from pathlib import Path

import pytest

from services.store import set_directory, synced_writes
from services.store.core.disk import CreateSegment, WriteSegment
from services.store.set_directory import SetDirectory
from services.store.synced_writes import can_sync_with_write, kind_of

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:20 / /proc rw,nosuid - proc proc rw
40 22 0:35 / /data rw,relatime - fuse.sshfs host:/data rw
41 40 0:36 / /data/fast rw - xfs /dev/vdb rw
42 40 0:37 / /data/with\040blank rw - btrfs /dev/vdc rw
43 22 0:38 / /twice rw - ext4 /dev/vdd rw
44 22 0:39 / /twice rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/lib/lockstep", "ext4"),
        ("/data", "fuse.sshfs"),
        ("/data/slow/set", "fuse.sshfs"),
        ("/data/fast/set", "xfs"),
        ("/data/faster", "fuse.sshfs"),
        ("/data/with blank/set", "btrfs"),
        ("/twice/set", "tmpfs"),
    ],
)
def test_a_place_is_on_the_mount_that_is_nearest_to_it(place: str, kind: str) -> None:
    assert kind_of(Path(place), MOUNTS) == kind


def test_nothing_is_known_of_a_place_on_no_mount() -> None:
    assert kind_of(Path("/anywhere"), "") == ""


def test_what_is_not_known_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("22 1 254:0 / / rw - ext4 /dev/vda rw\n")
    monkeypatch.setattr(synced_writes, "MOUNTS", mounts)
    assert can_sync_with_write(tmp_path)
    mounts.write_text("22 1 254:0 / / rw - virtiofs tag rw\n")
    assert not can_sync_with_write(tmp_path)
    mounts.unlink()
    assert not can_sync_with_write(tmp_path)


@pytest.mark.parametrize("in_one_call", [True, False])
def test_a_group_is_synced_once_in_one_call_or_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_one_call: bool
) -> None:
    monkeypatch.setattr(set_directory, "can_sync_with_write", lambda _: in_one_call)
    directory = SetDirectory(tmp_path / "set", is_prefilled=False)
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
