"""Where a write may be made durable by itself: file systems that are known to do with `RWF_DSYNC` what fdatasync does behind it.

Law: a file system that is not known gets both calls. Some pass the flag over in silence (FUSE and 9p past their caches).
"""

import os
from pathlib import Path

from lockstep.runtime.file_systems import filesystem_of

_KNOWN = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"}


def can_sync_with_write(directory: Path) -> bool:
    """Whether writes to files of a directory may be made durable by `os.RWF_DSYNC`."""
    try:
        return hasattr(os, "RWF_DSYNC") and filesystem_of(directory) in _KNOWN
    except OSError:
        return False
