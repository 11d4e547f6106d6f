"""Users and permissions, as the proxy asks for them; who keeps them is not its affair."""

from enum import StrEnum
from typing import Protocol

from lockstep.core.scram_credentials import ScramCredentials
from services.proxy.security.identity import Identity


class Users(Protocol):
    """Who may log in with a password. Asked from several threads."""

    def credentials(self, user: str) -> ScramCredentials:
        """Of the user, whose name is prepared by SASLprep.

        For an unknown user made-up ones that no password fits: the same at each call, and with nothing about them that tells them
        from a known user's (RFC 5802, 9). Raises nothing.
        """


class Action(StrEnum):
    """What a client may want to do with an address."""

    PUBLISH = "publish"
    CONSUME = "consume"
    BROWSE = "browse"
    CREATE = "create"
    DELETE = "delete"


class Permissions(Protocol):
    """Who may do what. Asked on the event loop: answers at once."""

    def may(self, identity: Identity, action: Action, resource: str) -> bool:
        """`resource`: name of a queue or exchange. Raises nothing."""


class AllowAll:
    """Everybody who is let in may do everything."""

    def may(self, identity: Identity, action: Action, resource: str) -> bool:
        return True
