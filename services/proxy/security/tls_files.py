"""The certificates of the port for AMQPS as their files are now: who renews them does not restart the proxy.

Law: a connection that begins gets what the files say, once they belong together; until then what they said before. Connections
that are there keep theirs.
"""

import logging
import os
import ssl
import time

from services.proxy.security.settings import TlsSettings
from services.proxy.security.tls import server_context

_log = logging.getLogger("lockstep.proxy")

LOOK_SECONDS = 1.0
"""Files are looked at no more often than that, however many clients connect."""
_Stamp = tuple[int, int, int]


class TlsFiles:
    """Lives as long as its port; used from its event loop."""

    def __init__(self, settings: TlsSettings, look_seconds: float = LOOK_SECONDS) -> None:
        """Raises `ValueError` for files that are not good to begin with."""
        self._settings = settings
        self._look_seconds = look_seconds
        self._stamps = self._look()
        self._looked_at = time.monotonic()
        self._newest = server_context(settings)
        self.context = server_context(settings)
        """For asyncio: each handshake that begins with it goes on with the newest."""
        self.context.sni_callback = self._choose

    def _choose(self, client: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called when a client has said hello, whether it names the server or not."""
        if time.monotonic() - self._looked_at >= self._look_seconds:
            self._reload()
        client.context = self._newest

    def _reload(self) -> None:
        self._looked_at = time.monotonic()
        stamps = self._look()
        if stamps == self._stamps:
            return
        # Before they are read: what changes meanwhile is seen the next time.
        self._stamps = stamps
        try:
            self._newest = server_context(self._settings)
        except ValueError as error:
            _log.warning("event=certificates_not_read error=%s", error)
        else:
            _log.info("event=certificates_read")

    def _look(self) -> tuple[_Stamp | None, ...]:
        files = self._settings.certificate, self._settings.key, self._settings.client_ca
        return tuple(_stamp(file) for file in files if file)


def _stamp(file: str) -> _Stamp | None:
    """None: it is not there."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
