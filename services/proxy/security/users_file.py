"""Users from a text file: a line `name:SCRAM-SHA-256$iterations:salt$storedkey:serverkey` for each; empty lines and those that
begin with # say nothing.

Law: a file that cannot be read whole changes nothing: until it can, the users are those of the last time. Nothing of a line is
logged.
"""

import hashlib
import hmac
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from lockstep.core.scram_credentials import (
    ITERATIONS_DEFAULT,
    KEY_BYTES,
    SALT_BYTES,
    ScramCredentials,
    read_user_line,
)

FILE_BYTES_MAX = 2 * 1024 * 1024
"""About 14,000 users; reading them takes about 0.4 s, in which the process does nothing else."""

_log = logging.getLogger("lockstep.proxy")


@dataclass(frozen=True, slots=True)
class _Content:
    """What one reading found; replaced as a whole, so that threads see one or the other."""

    users: dict[str, ScramCredentials]
    patterns: tuple[tuple[int, int], ...]
    """Iterations and length of the salt of every user: made-up credentials look like somebody's."""


class UsersFile:
    """A `Users` over a file, for the life of the process; looks at each question whether the file has changed.

    Replace the file by renaming another over it: of one that is being written half may be read, which is refused, and read
    again when it is whole.
    """

    def __init__(self, path: str | Path, secret: bytes = b"") -> None:
        """`secret`: makes up what unknown users get; processes that serve the same users share it. b"": from what the file holds
        now, so that processes which are started with the same file agree.

        Raises `OSError` for a file that cannot be read, and `ValueError`, with the number of the line, for one that is no users
        file.
        """
        self._path = Path(path)
        self._lock = Lock()
        """Held while the file is looked at: a thread that read an older one must not be the last to say so."""
        self._stamp = self._stamp_now()
        data = self._bytes()
        self._content = _read(data)
        self._secret = hmac.digest(b"lockstep unknown users", secret or data, "sha256")

    def credentials(self, user: str) -> ScramCredentials:
        self._read_if_changed()
        content = self._content
        made_up = self._made_up(user, content.patterns)
        return content.users.get(user, made_up)

    def _made_up(self, user: str, patterns: tuple[tuple[int, int], ...]) -> ScramCredentials:
        # surrogatepass: whatever the caller holds for a name must get an answer.
        seed = hmac.digest(self._secret, user.encode("utf-8", "surrogatepass"), "sha512")
        iterations, salt_bytes = patterns[int.from_bytes(seed[:8]) % len(patterns)]
        salt = hashlib.shake_256(b"salt" + seed).digest(salt_bytes)
        # Nobody knows a client key whose hash this is.
        keys = hashlib.shake_256(b"keys" + seed).digest(2 * KEY_BYTES)
        return ScramCredentials(iterations, salt, keys[:KEY_BYTES], keys[KEY_BYTES:])

    def _read_if_changed(self) -> None:
        with self._lock:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            # First: a file that cannot be read is tried and warned of once, until it changes again.
            self._stamp = stamp
            try:
                self._content = _read(self._bytes())
            except (OSError, ValueError) as error:
                _log.warning("users file %s is not read, the users stay as they were: %s", self._path, error)
            else:
                _log.info("users file %s is read: %d users", self._path, len(self._content.users))

    def _stamp_now(self) -> tuple[int, int, int, int] | None:
        """Differs when the file has changed; None: there is none that can be read."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev

    def _bytes(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"a users file has at most {FILE_BYTES_MAX} bytes")
        return data


def _read(data: bytes) -> _Content:
    users: dict[str, ScramCredentials] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode().strip()
            if not text or text.startswith("#"):
                continue
            name, credentials = read_user_line(text)
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: not UTF-8") from error
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if name in users:
            raise ValueError(f"line {number}: the user is there twice")
        users[name] = credentials
    patterns = [(found.iterations, len(found.salt)) for found in users.values()]
    return _Content(users, tuple(patterns) or ((ITERATIONS_DEFAULT, SALT_BYTES),))
