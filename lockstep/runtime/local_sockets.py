"""Unix sockets of processes that belong to one data directory: reached by who may enter it, and by nobody else.

Law: the path of a socket has at most 107 bytes. One that is longer stands for another, in a directory of this user alone under
the temporary directory, and for the same at each start.
"""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from lockstep.core.errors import ErrorCode, Rejected

PATH_BYTES_MAX = 107
"""`sun_path` of Linux, without its end."""


def socket_address(path: Path, temporary: Path | None = None) -> str:
    """`unix:path` for a socket at `path`, whose directory is there, or elsewhere if that is too long.

    `temporary`: the directory for what is short-lived, None: the system's. Raises `Rejected` if what stands in for the path
    belongs to somebody else.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        return f"unix:{path}"
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    directory = (temporary or Path(tempfile.gettempdir())) / f"lockstep-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        text = f"{directory} is open to others: sockets are not put there"
        raise Rejected(ErrorCode.UNAVAILABLE, text, directory=str(directory))
    return f"unix:{directory / name}"
