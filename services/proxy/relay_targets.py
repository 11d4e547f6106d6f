"""Where the messages of a connection's anonymous relays go: addresses that it has named, and that it may publish to."""

from collections.abc import Callable

from lockstep.core.errors import LockstepError, Rejected
from services.proxy.nodes import REMEMBERED_CHARACTERS_MAX, Nodes, Target

ADDRESSES_KEPT = 1_000
"""Of one connection: some hundred kilobytes."""


class RelayTargets:
    """Lives as long as its connection."""

    def __init__(self, nodes: Nodes, check: Callable[[str], None]) -> None:
        """`check` raises `Rejected` for an address that the connection may not publish to."""
        self._nodes = nodes
        self._check = check
        self._addresses: dict[str, None] = {}
        """Those that were checked."""

    def known(self, text: str) -> Target | None:
        """The target of an address that was found before."""
        return self._nodes.known_target(text) if text in self._addresses else None

    async def find(self, text: str) -> Target | Rejected:
        """The target, or why there is none."""
        try:
            self._check(text)
            target = await self._nodes.target(text)
            if len(text) <= REMEMBERED_CHARACTERS_MAX:
                if len(self._addresses) >= ADDRESSES_KEPT:
                    self._addresses.clear()
                self._addresses[text] = None
            return target
        except Rejected as rejected:
            return rejected
        except LockstepError as error:
            return Rejected(error.code, error.message)
