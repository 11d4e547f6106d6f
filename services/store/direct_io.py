"""Writing past the page cache, where what is written is not read again soon: each page costs more there than its write."""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

ALIGNED_BYTES = 4096
"""Places, lengths and memory have to be multiples of a sector; any disk's fits."""


def takes_direct_io(directory: Path) -> bool:
    """Whether the file system under a directory, which is there, does it: not all do."""
    probe = directory / "direct.probe"
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, ALIGNED_BYTES) as page:
            return os.pwritev(descriptor, [page], 0) == os.preadv(descriptor, [page], 0) == ALIGNED_BYTES
    except OSError:
        return False
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def direct_io(descriptor: int) -> Iterator[None]:
    """What is done with an open file goes past the page cache until this is left. Only where `takes_direct_io`."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
