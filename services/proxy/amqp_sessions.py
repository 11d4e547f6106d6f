"""The sessions that a client has begun on its connection (AMQP 1.0, 2.5).

Law: a begin begins one session on one channel. Links that were refused count until they are detached: the engine holds them.
"""

from proton import Link, Session

from services.proxy.client_deliveries import Settling
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle
from services.proxy.settings import ProxyLimits
from services.proxy.steps import Work


class AmqpSessions:
    """Lives as long as its connection."""

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._begun: dict[Session, dict[Handle, Link]] = {}
        """Each with the links that the client has attached on it and not detached."""
        self._links = 0
        """Those on all of them."""
        self._lossy: dict[Session, None] = {}
        """On which the client may still send the rest of what was refused."""
        self._settling: dict[Handle, Settling] = {}
        """Of links that have ended: settles their deliveries, before the engine frees them with what they have."""

    def begin(self, session: Session) -> bool:
        """Answers a begin; False: it begins no session.

        The engine lets a client begin a session on two channels, as if it answered one of ours: freed with one of them, it would
        still be known by the other. And two sessions on one channel, of which one stays for ever.
        """
        if session in self._begun or len(self._begun) > self._limits.channels_max:
            return False
        self._begun[session] = {}
        session.incoming_capacity = self._limits.session_window_bytes
        session.open()
        return True

    def end(self, session: Session) -> Work:
        """Answers an end; what its links were here is gone before. Those that are not detached are freed one by one, and not
        in one step with it."""
        links = self._begun.pop(session)
        self._links -= len(links)
        self._lossy.pop(session, None)
        session.close()
        yield from self._free(links, has_transport=True)
        session.free()

    def release(self) -> Work:
        """The connection is gone: frees what would else be freed at once with it."""
        while self._begun:
            _, links = self._begun.popitem()
            yield from self._free(links, has_transport=False)

    def attach(self, link: Link) -> bool:
        """Counts a link of the client's; False: there are too many."""
        self._begun[_keep_session(link)][path.handle_of(link)] = link
        self._links += 1
        return self._links <= 2 * self._limits.links_max

    def detach(self, link: Link) -> None:
        """The client has detached it."""
        del self._begun[_keep_session(link)][path.handle_of(link)]
        self._links -= 1

    def ended(self, link: Handle, settling: Settling) -> None:
        """A link has ended, and is not freed before this is done."""
        self._settling[link] = settling

    def settle(self, link: Handle, *, has_transport: bool = True) -> Work:
        """What is to be done before the link is freed. `has_transport`: the engine has one."""
        settling = self._settling.pop(link, None)
        if settling is not None:
            yield from settling(has_transport)

    def refused(self, session: Session) -> None:
        """A link was ended by us: what the client has sent on it meanwhile comes, and nobody takes it."""
        if session in self._begun:
            self._lossy[session] = None

    def sending(self) -> set[Handle]:
        """Sessions that have a link that the client has not detached, with something on it that is not on the wire."""
        return {
            path.handle_of(session)
            for session, links in self._begun.items()
            if any(path.is_sending(link) for link in links)
        }

    def restore_windows(self) -> None:
        """Gives windows back what nobody took. To be called when the links have taken all that came.

        The engine counts the rest of a settled delivery to what waits in the session, and never takes it off again.
        """
        for session in self._lossy:
            wanted = self._limits.session_window_bytes + session.incoming_bytes
            if session.incoming_capacity != wanted:
                session.incoming_capacity = wanted

    def _free(self, links: dict[Handle, Link], *, has_transport: bool) -> Work:
        while links:
            handle, link = links.popitem()
            yield from self.settle(handle, has_transport=has_transport)
            link.free()
            yield None


def _keep_session(link: Link) -> Session:
    """Has whoever keeps this object of a link keep the link's session, too, and let go of it after the link; returns it.

    An object that is the last to hold an ended session lets go of the link, then of the session, which frees the link while it
    is being freed. (The dictionary is the object's own: its attributes are kept by the engine's link.)
    """
    session = link.session
    link.__dict__["kept_session"] = session
    return session
