"""Known hosts: clients hear on their open streams when others may serve the set (DESIGN 6).

Law: every stream hears of each change, or of a later one; many streams hear it in turns, so that nobody waits.
The addresses are filled in as the message is written: this core knows none.
"""

from itertools import islice

from lockstep.core.server_messages import CandidatesChanged
from services.primary.core.client_streams import ClientStreams

STREAMS_TOLD_MAX = 500
"""In one go: some milliseconds' work."""


class KnownHosts:
    """Lives as long as the epoch; driven by the primary core."""

    def __init__(self, streams: ClientStreams) -> None:
        self._streams = streams
        self._untold: dict[int, None] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether streams are left that have not heard of the last change."""
        return bool(self._untold)

    def changed(self) -> None:
        """Others may serve the set, or in another order; who attaches from now on hears it with that."""
        self._untold = dict.fromkeys(self._streams.by_number)

    def tell(self) -> None:
        """Tell some of those who have not heard."""
        for number in list(islice(self._untold, STREAMS_TOLD_MAX)):
            del self._untold[number]
            message = CandidatesChanged(*self._streams.head(), self._streams.candidates)
            self._streams.tell_now(number, message)
