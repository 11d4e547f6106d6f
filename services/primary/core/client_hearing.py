"""What clients say on their streams, from the attachment on: each message goes to the part that knows what to do with it.

Law: what is said before the epoch serves waits for that, and what is said behind a command that waits for a name, or for bodies,
or is done in parts, waits with it; so a session's messages are taken in the order in which they were said. What was said in one
go, and is much together, goes on stream by stream, in turns beside what others say.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from lockstep.core.commands import AnyCommand, Command, CommitCommand, PublishCommand, SettleCommand
from lockstep.core.errors import ErrorCode, LimitReached
from lockstep.core.inputs import ClientSaid, NameClaimed
from lockstep.core.pieces import PIECE_COST
from lockstep.core.requests import AttachSession, DetachSession, Heard, Heartbeat
from lockstep.core.server_messages import HeartbeatAnswered
from lockstep.core.sessions import Session
from lockstep.core.taking_apart import emptied
from services.primary.core.aftermath import Aftermath
from services.primary.core.attachments import Attachments
from services.primary.core.client_streams import ClientStream, ClientStreams
from services.primary.core.clients import Clients
from services.primary.core.context import Context
from services.primary.core.early_messages import EarlyMessages
from services.primary.core.requests import handle_request
from services.primary.core.selecting import BEGUN_MAX, Asking, LongSelection

ACCEPTS_MAX = 8
"""So many accepts are looked through for the commit behind them."""
WORK_IN_ONE = 4000
"""Of commands in one step (`Context.work`): behind so much the others wait for the next. It is less than most commands may do."""


class ClientHearing:
    """Lives as long as the epoch; driven by the primary core, which says when the epoch serves."""

    def __init__(
        self,
        context: Context,
        streams: ClientStreams,
        attachments: Attachments,
        clients: Clients,
        aftermath: Aftermath,
    ) -> None:
        self._context = context
        self._streams = streams
        self._attachments = attachments
        self._aftermath = aftermath
        self.clients = clients
        self.early = EarlyMessages(context.settings)
        self.left: list[ClientSaid] = []
        """Said behind something that nothing may come between: to be taken behind it, before all that comes."""
        self._cut_off: dict[int, ClientStream] = {}
        """Streams whose backlogs go on behind that, before all else."""
        self._rests: dict[int, deque[ClientSaid]] = {}
        """By stream: what was said behind as much as is done in one step, in order, and what came since. The first is next."""

    def said_early(self, given: ClientSaid) -> None:
        """Keep what a client said before the epoch serves, or turn its stream away."""
        why = self.early.keep(given)
        if why:
            text = f"epoch {self._context.epoch} does not serve yet: {why}"
            self._context.note_refusal(LimitReached("early_messages", ErrorCode.UNAVAILABLE, text))
            self._streams.turn_away(given.stream, ErrorCode.UNAVAILABLE, text)

    def turn_away_early(self, why: str) -> None:
        """The epoch ends without having served: nobody waits for it any more."""
        for stream in self.early.streams:
            self.early.drop(stream)
            self._streams.turn_away(stream, ErrorCode.NOT_PRIMARY, why)

    def take_early(self) -> None:
        """The epoch serves: what clients said before is taken now."""
        for said in self.early.take():
            if self._context.alone.works:
                self.left.append(said)
            else:
                self.said(said)

    def said(self, given: ClientSaid) -> None:
        """Take what a client said, in order."""
        if self._rests and (waiting := self._rests.get(given.stream)) is not None:
            waiting.append(given)
        elif (rest := self._heard(given)) is None:
            pass
        elif self._context.alone.works:
            self.left.append(rest)
        else:
            self._rests[given.stream] = deque((rest,))

    def go_on_with_rests(self) -> None:
        """One of the streams that said much has its turn."""
        if not self._rests:
            return
        number = next(iter(self._rests))
        waiting = self._rests.pop(number)
        rest = None
        while waiting and rest is None:
            rest = self._heard(waiting.popleft())
        if rest is not None:
            waiting.appendleft(rest)
        if waiting:
            self._rests[number] = waiting

    def _heard(self, given: ClientSaid) -> ClientSaid | None:
        """Take what is not too much for one step; answers the rest."""
        context, stream = self._context, self._streams.by_number.get(given.stream)
        if stream is not None:
            stream.heard_ms = context.now.boottime_ms
        messages, place = given.messages, 0
        works = context.alone.works
        while place < len(messages):
            if works or context.work > WORK_IN_ONE:
                return ClientSaid(given.set_name, given.stream, messages[place:])
            message, behind = messages[place], place + 1
            if isinstance(message, AttachSession):
                if stream is None:
                    stream = self._attachments.attach(given.stream, message)
                    if not works:
                        self._aftermath.settle()
            elif stream is not None:
                whole = _transaction(message, messages, place) if isinstance(message, SettleCommand) else None
                if whole is not None and self.clients.transaction(stream, *whole):
                    self._end_command()
                    behind = place + len(whole[0]) + 1
                    context.work += sum([len(accept.positions) for accept in whole[0]])
                else:
                    self._take(stream, message)
            else:
                # Of a stream that was closed, or by a mistake: nobody is to wait for an answer that does not come.
                self._streams.end(
                    given.stream, ErrorCode.UNAVAILABLE, "no session is attached on this stream"
                )
                break
            place = behind
        return None

    def heard_amid(self, given: ClientSaid) -> bool:
        """A client says something while what nothing may come between is done. Answers whether that is only that it lives, which
        is heard at once, or nothing whole yet.
        """
        stream = self._streams.by_number.get(given.stream)
        if stream is not None:
            stream.heard_ms = self._context.now.boottime_ms
        if not all(isinstance(message, Heartbeat) for message in given.messages):
            return False
        if stream is not None and given.messages:
            self._answer_heartbeat(stream)
        return True

    def closed(self, number: int) -> None:
        """A client's stream is gone."""
        self.early.drop(number)
        self._rests.pop(number, None)
        self._attachments.close_stream(number)

    def name_claimed(self, given: NameClaimed) -> None:
        """etcd answered a claim: the command that waited for it is done, and what was said behind it goes on."""
        stream = self.clients.claimed(given)
        if stream is not None:
            self._go_on(stream)

    def bodies_came(self) -> None:
        """Commands whose bodies have been read are done, and what was said behind them goes on."""
        while (stream := self.clients.rejected()) is not None:
            self._end_command()
            self._go_on(stream)
            if self._context.alone.works:
                break

    def purge(self) -> None:
        """Long purges go on by one part; what was said behind one that is done goes on, too."""
        stream = self.clients.purges.go_on()
        if stream is not None:
            self._end_command()
            self._go_on(stream)

    def select(self) -> None:
        """What waits for a share of the time that selectors may take is taken again, and what was said behind it goes on. Dead
        letters that wait for one, too, have it behind this, if it is their turn.
        """
        selections, letters = self.clients.selections, self._context.letters
        if letters.are_next:
            letters.are_next = False
            return
        while not self._context.alone.works and (taken := selections.take()) is not None:
            letters.others_selected = True
            self._take(*taken)
            self._context.selectors.resumed = None
            self._go_on(taken[0])

    @property
    def has_more(self) -> bool:
        """Whether backlogs or rests are to go on, when nothing is done alone."""
        return bool(self._cut_off or self._rests)

    @property
    def resting(self) -> list[int]:
        """Streams with rests."""
        return list(self._rests)

    def take_apart(self) -> Iterator[int]:
        """The reign is over: leave nothing of the rests, in steps that say what they cost."""
        yield from emptied(self._rests, lambda rest: sum([len(said.messages) for said in rest[1]]))

    def go_on_cut_off(self) -> None:
        """What nothing was to come between is done: backlogs go on."""
        while self._cut_off and not (self._context.alone.works or self._context.work > WORK_IN_ONE):
            number = next(iter(self._cut_off))
            stream = self._cut_off.pop(number)
            if self._streams.by_number.get(number) is stream:
                self._go_on(stream)

    def _go_on(self, stream: ClientStream) -> None:
        context = self._context
        while not (context.alone.works or context.work > WORK_IN_ONE):
            message = self.clients.next_held_back(stream)
            if message is None:
                return
            self._take(stream, message)
        self._cut_off[stream.number] = stream

    def _take(self, stream: ClientStream, message: Heard) -> None:
        if stream.blocked_by and not isinstance(message, Heartbeat):
            self.clients.hold_back(stream, message)
            return
        try:
            match message:
                case PublishCommand():
                    self._context.work += len(message.messages)
                    self.clients.command(stream, message)
                case SettleCommand():
                    self._context.work += len(message.positions)
                    self.clients.command(stream, message)
                case Command():
                    self.clients.command(stream, message)
                case Heartbeat():
                    self._answer_heartbeat(stream)
                case DetachSession():
                    self._attachments.detach(stream)
                case AttachSession():
                    pass
                case _:
                    handle_request(self._context, self._streams, self._attachments, stream, message)
        except LongSelection as long:
            if long.asking is not None and long.asking.begun >= BEGUN_MAX and isinstance(message, Command):
                self._context.alone.do(self._undisturbed(stream, message, long.asking))
            else:
                self.clients.selections.begin(stream, message, long.asking)
        self._end_command()

    def _undisturbed(self, stream: ClientStream, command: AnyCommand, asking: Asking) -> Iterator[int]:
        """Bindings have changed again and again under this publish: nothing comes between what is left of it. It has no more of
        the time than others that ask selectors.
        """
        selectors = self._context.selectors
        while True:
            yield PIECE_COST
            selectors.resumed = asking
            try:
                self.clients.command(stream, command)
                break
            except LongSelection as long:
                asking = long.asking or asking
            finally:
                selectors.resumed = None
        self._cut_off[stream.number] = stream

    def _answer_heartbeat(self, stream: ClientStream) -> None:
        """At once, also where commands before it wait, so it says how far those are."""
        streams, context = self._streams, self._context
        # Silence without the right to serve: the client looks for somebody who has it.
        if streams.may_speak:
            session = context.state.sessions.get(stream.session)
            next_number = self._done_before(session) if session is not None else 0
            pause_ms = 1000 * len(streams.by_number) // context.settings.client_heartbeats
            streams.tell_now(stream.number, HeartbeatAnswered(*streams.head(), pause_ms, next_number))

    def _done_before(self, session: Session) -> int:
        """Its commands before this one were done: the last of them may be what is being done."""
        context, next_number = self._context, session.next_number
        if context.alone.works and (last := session.answers.get(next_number - 1)) is not None:
            return next_number - (last.index > context.writer.log.framed_end)
        return next_number

    def _end_command(self) -> None:
        context = self._context
        if context.alone.works:
            return  # It ends behind that (`PrimaryCore`).
        self._aftermath.settle()
        context.writer.log.end_command(context.settings.frame_bytes_max)


def _transaction(
    first: SettleCommand, messages: Sequence[Heard], place: int
) -> tuple[Sequence[SettleCommand], CommitCommand] | None:
    """Accepts of one transaction, the first being at `place`, and its commit right behind them; None: they are not that."""
    if first.transaction is None:
        return None
    accepts = [first]
    for message in messages[place + 1 : place + 1 + ACCEPTS_MAX]:
        if isinstance(message, CommitCommand):
            return (accepts, message) if message.transaction == first.transaction else None
        if not isinstance(message, SettleCommand):
            return None
        accepts.append(message)
    return None
