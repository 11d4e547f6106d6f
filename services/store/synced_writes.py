"""Where a write may be made durable by itself: file systems that are known to do with `RWF_DSYNC` what fdatasync does behind it.

Law: a file system that is not known gets both calls. Some pass the flag over in silence (FUSE and 9p past their caches).
"""

import os
import re
from pathlib import Path

KNOWN = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"}
MOUNTS = Path("/proc/self/mountinfo")


def can_sync_with_write(directory: Path) -> bool:
    """Whether writes to files of a directory may be made durable by `os.RWF_DSYNC`."""
    if not hasattr(os, "RWF_DSYNC"):
        return False
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return False
    return kind_of(directory.resolve(), mounts) in KNOWN


def kind_of(place: Path, mounts: str) -> str:
    """The file system of a place, by the lines of /proc/self/mountinfo (proc(5)); "" if none is found."""
    found, depth = "", -1
    for line in mounts.splitlines():
        mount, _, rest = line.partition(" - ")
        point = Path(_plain(mount.split(" ")[4]))
        # Of several on one point the last is seen.
        if place.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = rest.split(" ")[0], len(point.parts)
    return found


def _plain(escaped: str) -> str:
    """A mount point's name; blanks and backslashes are three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), escaped)
