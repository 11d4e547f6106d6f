"""What a client's frames say and the engine does not tell: looked at on their way to it (AMQP 1.0, 2.3, 2.7).

Law: the engine gets what came, in order, but for NUL in names of containers and links and in addresses, where it would cut
them: they get U+0001 in its place, and whoever reads them refuses every control character. And the end of a session detaches
its links one by one before it (2.5.2): the engine would free them all at once. What a client says of very many deliveries at
once it hears of some at a time (2.7.6), and of a long state or tag no more than counts: it would keep a copy for each
delivery, and what it takes to read a state for ever. A flow that drains a link it is given when it has told of all that came
before (2.6.7): it would tell of that as if it drained, too. Of nearly all transfers nothing is looked at but their first
bytes, and of nearly all dispositions little more. Nothing raises: of what is malformed the engine says so.
"""

from collections.abc import Callable
from struct import Struct

from lockstep.core.amqp.encodings import LISTS, MAPS, NULL, UINT, contents, decode, members, skip
from lockstep.core.errors import Rejected
from services.proxy.begun_room import LINK_BYTES, SESSION_BYTES, bytes_of

_HEADER_BYTES = 8
"""Of the protocol, and of a frame."""
_LOOK_BYTES = 11
"""Of a frame, up to its performative's code."""
_look = Struct(">IB5xB").unpack_from
"""(size, place of the body in words, code of the performative): of nearly all frames. What is there instead of the code where the
descriptor has another form is a number below `_TRANSFER`, or `_DISPOSITION` where it is one."""
_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION, _DETACH, _END = range(0x10, 0x18)
_LOOKED_AT = frozenset({_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION, _DETACH, _END})
_CODES = {
    b"amqp:open:list": _OPEN,
    b"amqp:begin:list": _BEGIN,
    b"amqp:attach:list": _ATTACH,
    b"amqp:flow:list": _FLOW,
    b"amqp:transfer:list": _TRANSFER,
    b"amqp:disposition:list": _DISPOSITION,
    b"amqp:detach:list": _DETACH,
    b"amqp:end:list": _END,
}
_LIST_BYTES = 13
_look_at_list = Struct(">IB5xBBB").unpack_from
"""As `_look`, and (constructor of the list behind that, its size, if that has one byte)."""
_SHORT_LIST, _LONG_LIST = 0xC0, 0xD0
_FIELDS_BYTES_MAX = 64
"""Of nearly all transfers: no state or tag in so few bytes is long."""
_NO_FIELDS, _FEW_FIELDS = bytes(4), (_FIELDS_BYTES_MAX + 3).to_bytes(4, "big")
"""Sizes of the other kind of list, whose number of values has three bytes more. One that has not come whole is not between."""
_RANGE_AT, _RANGE_BYTES = 8, 17
_look_at_range = Struct(">I2xHIBI").unpack_from
"""(descriptor and constructor of the list, role and constructor of `first`, first, constructor of `last`, last): of nearly all
dispositions, if they are what the next two say and a uint."""
_SHORT_DISPOSITION, _RECEIVERS, _UINT = 0x005315C0, 0x4170, 0x70
TOLD_AT_ONCE = 2_000
"""Deliveries of which the engine hears with one disposition: a millisecond's work."""
_SHORT_FRAME_BYTES = 96
"""Of a disposition: the state in it is none of those that are long."""
_STATE_BYTES_MAX, _STATE_VALUES_MAX = 4 * 1024 + 256, 256
"""Of a state that the engine hears of as it is: with the 4 KiB of annotations that a broker keeps, if they are not very many."""
_VALUE_BYTES = 75
"""What each value in a copy takes, about."""
_COPIES_BYTES_MAX = 16 * 1024 * 1024
"""What copies may take, if the client says the same of all that it has: the engine keeps the memory of each for the next
delivery that it gives the same place."""
_LONG_BYTES = 256
"""From this size on of a frame fewer deliveries are told at once, so that copies of its state take no more."""
_MODIFIED, _TRANSACTIONAL = 0x27, 0x34
_STATE_CODES = {b"amqp:modified:list": _MODIFIED, b"amqp:transactional-state:list": _TRANSACTIONAL}
_HEAD_BYTES_MAX = 64
"""Of the descriptor of a state, and of the id of a transaction."""
_COMPOUND = LISTS | MAPS
_SHORT_ARRAY = 0xE0
_ARRAYS = frozenset({_SHORT_ARRAY, 0xF0})
_SERIALS = 1 << 32
"""Numbers of deliveries; behind the last one comes 0."""
_detach = Struct(">IBBH7sI").pack
_DETACHES = b"\x00\x53\x16\xc0\x06\x01\x70"
"""What is before the handle in the body of a detach that does not close its link."""
_DETACH_BYTES = _HEADER_BYTES + len(_DETACHES) + 4
_TEXTS = frozenset({0xA1, 0xA3, 0xB1, 0xB3})
_SETTLED = b"\x50\x01"
"""The snd-settle-mode `settled`: a ubyte, which has one encoding."""
_NULL_BYTE = b"\x40"
_TRUE, _TRUE_BYTE = b"\x41", b"\x56\x01"
"""The two encodings of true, as which a flow says that it drains."""
_TXN_ID = b"txn-id"
"""Property of a flow by which a client acquires in a transaction (4.4.3)."""
_DISPOSITION_FIELDS, _ATTACH_FIELDS, _TRANSFER_FIELDS, _FLOW_FIELDS = 5, 7, 8, 11
"""How many of them are of interest: up to the state, the target, the state, and the properties."""
_STATE_FIELD = 4
_TAG_FIELD, _TRANSFER_STATE_FIELD = 2, 7
_TAG_BYTES_MAX = 32
"""As AMQP says (2.8.7). The engine keeps a tag of any size with its delivery."""
_BINARIES = frozenset({0xA0, 0xB0})
_PROPERTIES_MAX = 1_000
"""Of a flow, so that looking at one has an end."""
_LOOKED_MAX = 16
"""Frames of those that are looked at, attaches above all, in one go: the engine and others have far more work with each."""
_PAIRS_MAX = 8_192
"""Nobody has as many links on one connection (`ProxyLimits.links_max`) and gives each another handle."""


class ClientFrames:
    """Lives as long as its connection, which takes all of its input through it."""

    def __init__(self, frame_bytes_max: int, sent: Callable[[], int], held: Callable[[], int]) -> None:
        """`sent`: how many deliveries the client got on this connection; `held`: how many of them it has not settled."""
        self._frame_bytes_max = frame_bytes_max
        self._sent = sent
        self._held_by_client = held
        self._passing = _HEADER_BYTES
        """Bytes to come until the next frame begins."""
        self._held: list[bytes] = []
        """Of a frame that is looked at when all of it is there; the engine has nothing of it yet."""
        self._missing = 0
        """Of that frame, or until it is known how long that is."""
        self._is_over = False
        """There are no frames any more: the engine ends the connection."""
        self.rest = b""
        """What the last look has left of its data, because there is much to do for what it gave: taken with `take_rest`, it is to
        be looked at behind that."""
        self._presettled: dict[tuple[int, int], str] = {}
        """(channel, handle) -> name, of links on which the client receives what is settled when it is sent."""
        self._acquiring: list[str] = []
        self.has_drain = False
        """A link is to be drained by what the last look gave, and it gave nothing before that flow: taken with `take_drain`."""
        self._drains_nothing = False
        self._handles: dict[int, dict[int, int]] = {}
        """Of each channel: those on which the client has attached a link and not detached it, in the order of their attaches, and
        what each link counts."""
        self._detaches = b""
        """Of the links of a session that ends: they come before that."""
        self._instead: tuple[bytes, bytes] | None = None
        """What the engine is given in the place of the frame that was looked at, and what of it is to be looked at behind that: a
        disposition of some deliveries, and of the rest; or a shorter frame, and nothing; or nothing, and a flow that drains."""
        self.has_lost_handle = False
        """A link was attached on the handle of another one, by which that is not known to the engine any more, or on none."""
        self.begun = 0
        """Sessions and links that the client has begun in all."""
        self.begun_bytes = 0
        """What those count in the room that are not ended, and the open."""
        self._sessions: dict[int, int] = {}
        """Of that, what each channel's session counts without its links."""

    def take_acquiring(self) -> list[str]:
        """Names of those links whose messages the client wants to acquire in a transaction, since the last time."""
        taken, self._acquiring = self._acquiring, []
        return taken

    def take_drain(self) -> bool:
        """Whether a link is to be drained that its client says to have no credit."""
        drains_nothing, self.has_drain, self._drains_nothing = self._drains_nothing, False, False
        return drains_nothing

    def take_rest(self) -> bytes:
        """The rest, which is no more here."""
        taken, self.rest = self.rest, b""
        return taken

    def look(self, data: bytes) -> bytes:
        """Takes what came, all of it or a part; returns what the engine is to be given."""
        if self._is_over:
            return data
        if self._missing:
            self._held.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._held)
            self._held.clear()
            self._missing = 0
        at = self._passing
        last, last_list = len(data) - _LOOK_BYTES, len(data) - _LIST_BYTES
        last_range = len(data) - _RANGE_AT - _RANGE_BYTES
        look, look_at_list, look_at_range = _look, _look_at_list, _look_at_range
        looked = 0
        while at <= last:
            if at <= last_list:
                size, body, code, constructor, fields_bytes = look_at_list(data, at)
                if (
                    constructor == _SHORT_LIST
                    and code == _TRANSFER
                    and fields_bytes <= _FIELDS_BYTES_MAX
                    and body == 2
                    and size >= _LIST_BYTES
                ):
                    at += size
                    continue
            else:
                size, body, code = look(data, at)
                constructor = 0
            is_passing = (
                code == _TRANSFER
                and constructor == _LONG_LIST
                and _NO_FIELDS <= data[at + 12 : at + 16] <= _FEW_FIELDS
            )
            if code == _DISPOSITION and at <= last_range:
                head, role, first, constructor, end = look_at_range(data, at + _RANGE_AT)
                is_passing = (
                    size <= _SHORT_FRAME_BYTES
                    and role == _RECEIVERS
                    and (0 <= end - first < TOLD_AT_ONCE if constructor == _UINT else constructor == NULL)
                    and head == _SHORT_DISPOSITION
                )
            if not is_passing or body != 2 or size < _LOOK_BYTES:
                if not _HEADER_BYTES <= size <= self._frame_bytes_max:
                    self._is_over = True
                    return data
                if at + size > len(data):
                    return self._hold(data, at, at + size - len(data))
                if size >= _LOOK_BYTES and (
                    code != _FLOW or body != 2 or _is_of_interest(data, at, at + size)
                ):
                    data = self._looked_at(data, at, at + size)
                    if self._detaches:
                        detaches, self._detaches = self._detaches, b""
                        self._passing, self.rest = 0, data[at:]
                        return data[:at] + detaches
                    if self._instead is not None:
                        (some, rest), self._instead = self._instead, None
                        self._passing, self.rest = 0, rest + data[at + size :]
                        return data[:at] + some
                    looked += code < _TRANSFER or code > _DISPOSITION
                    if looked == _LOOKED_MAX:
                        at += size
                        self._passing, self.rest = 0, data[at:]
                        return data[:at]
            at += size
        return self._end(data, at)

    def _end(self, data: bytes, at: int) -> bytes:
        """As `look`, when the next frame begins there: behind the data, or it is no longer than what a look takes."""
        while (left := len(data) - at) >= _HEADER_BYTES:
            size = int.from_bytes(data[at : at + 4], "big")
            if not _HEADER_BYTES <= size <= self._frame_bytes_max:
                self._is_over = True
                return data
            if size > left:
                return self._hold(data, at, min(size, _LOOK_BYTES) - left)
            # An empty frame is not kept back: it says that the client is there.
            at += size
        if left > 0:
            return self._hold(data, at, _HEADER_BYTES - left)
        self._passing = -left
        return data

    def _hold(self, data: bytes, at: int, missing: int) -> bytes:
        """Keeps back what begins there, until so many bytes more have come."""
        self._passing = 0
        self._held.append(data[at:])
        self._missing = missing
        return data[:at]

    def _looked_at(self, data: bytes, at: int, end: int) -> bytes:
        """One frame was looked at; returns all of the data."""
        frame = data[at:end]
        try:
            cuts = self._see(frame, is_behind=at > 0)
        except Rejected:
            return data
        if not any(0 in frame[first:last] for first, last in cuts):
            return data
        changed = bytearray(frame)
        for first, last in cuts:
            changed[first:last] = frame[first:last].replace(b"\0", b"\1")
        return b"".join((data[:at], changed, data[end:]))

    def _see(self, frame: bytes, *, is_behind: bool) -> list[tuple[int, int]]:
        """Where the texts are that the engine would cut. `is_behind`: the engine is given something before it. Raises `Rejected`
        for what is no performative."""
        at = 4 * frame[4]
        if at >= len(frame):
            return []
        values_at = skip(frame, at + 1, len(frame)) if frame[at] == 0 else at
        code = _code(frame[at + 1 : values_at], _CODES)
        if code not in _LOOKED_AT:
            return []
        self.begun += code in (_BEGIN, _ATTACH)
        channel = int.from_bytes(frame[6:8], "big")
        if code == _END:
            handles = self._handles.pop(channel, {})
            self.begun_bytes -= sum(handles.values()) + self._sessions.pop(channel, 0)
            self._detaches = b"".join(
                _detach(_DETACH_BYTES, 2, 0, channel, _DETACHES, handle) for handle in handles
            )
            return []
        if code == _ATTACH:
            return self._attached(channel, frame, values_at)
        if code == _TRANSFER:
            self._shorten(frame, values_at)
            return []
        if code == _DISPOSITION:
            self._divide(frame, values_at)
            return []
        if code == _BEGIN:
            size = bytes_of(len(frame), SESSION_BYTES)
            self._sessions[channel] = self._sessions.get(channel, 0) + size
            self.begun_bytes += size
            return []
        fields = _fields(frame, values_at, len(frame), _FLOW_FIELDS)
        if code == _DETACH:
            handle = _uint(frame, fields[0]) if fields else None
            if handle is not None and channel in self._handles:
                self.begun_bytes -= self._handles[channel].pop(handle, 0)
            return []
        if code == _OPEN:
            self.begun_bytes += bytes_of(len(frame), 0)
            return _texts(frame, fields[:1])
        self._flowed(frame, fields, is_behind)
        return []

    def _attached(self, channel: int, frame: bytes, values_at: int) -> list[tuple[int, int]]:
        is_lost, self.has_lost_handle = self.has_lost_handle, True
        size = bytes_of(len(frame), LINK_BYTES)
        self.begun_bytes += size
        fields = _fields(frame, values_at, len(frame), _ATTACH_FIELDS)
        handle = _uint(frame, fields[1]) if len(fields) > 1 else None
        if handle is None:
            return []
        handles = self._handles.setdefault(channel, {})
        self.has_lost_handle = is_lost or handle in handles
        handles[handle] = size
        self._note_presettled((channel, handle), frame, fields)
        termini = [_first_field(frame, place) for place in fields[5:7]]
        return _texts(frame, fields[:1] + [place for place in termini if place is not None])

    def _note_presettled(self, pair: tuple[int, int], frame: bytes, fields: list[int]) -> None:
        is_presettled = len(fields) > 3 and frame[fields[3] : fields[3] + 2] == _SETTLED
        if len(fields) < 3 or not (is_presettled or self._presettled):
            return
        name, role = (decode(frame, place, len(frame))[0] for place in (fields[0], fields[2]))
        if not isinstance(name, str):
            return
        self._presettled.pop(pair, None)
        if is_presettled and role is True:
            if len(self._presettled) >= _PAIRS_MAX:
                del self._presettled[next(iter(self._presettled))]
            self._presettled[pair] = name.replace("\0", "\1")

    def _shorten(self, frame: bytes, values_at: int) -> None:
        """A transfer with no more than counts of its state and tag: the engine keeps both until the delivery is settled."""
        _, _, end = members(frame, values_at, len(frame), LISTS)
        fields = _fields(frame, values_at, end, _TRANSFER_FIELDS)
        others = []
        if len(fields) > _TAG_FIELD and frame[fields[_TAG_FIELD]] in _BINARIES:
            first, behind = contents(frame, fields[_TAG_FIELD], end)
            tag = frame[first : min(behind, first + _TAG_BYTES_MAX)]
            others.append((fields[_TAG_FIELD], behind, b"\xa0" + bytes([len(tag)]) + tag))
        if len(fields) > _TRANSFER_STATE_FIELD:
            at = fields[_TRANSFER_STATE_FIELD]
            behind = skip(frame, at, end)
            others.append((at, behind, _short_state(frame, at, behind)))
        shorter = _with_others(frame, values_at, others)
        if len(shorter) < len(frame):
            self._instead = shorter, b""

    def _divide(self, frame: bytes, values_at: int) -> None:
        """A disposition in two, if it is of more deliveries of the client's than the engine is to hear of at once; and one whose
        state is too long with as much of that as counts."""
        count, _, end = members(frame, values_at, len(frame), LISTS)
        fields = _fields(frame, values_at, end, _DISPOSITION_FIELDS)
        if len(fields) > _STATE_FIELD and len(frame) > _SHORT_FRAME_BYTES:
            at = fields[_STATE_FIELD]
            behind = skip(frame, at, end)
            # Of its own transfers the client has said what counts with them: nobody reads what it says here.
            if decode(frame, fields[0], end)[0] is not True or self._is_too_long(frame, at, behind):
                shorter = _with_others(frame, values_at, [(at, behind, _short_state(frame, at, behind))])
                if len(shorter) < len(frame):
                    self._instead = shorter, b""
                    self._divide(shorter, values_at)
                    return
        if len(fields) < 3:
            return
        role, first, last = fields[:3]
        at_once = (
            TOLD_AT_ONCE if len(frame) <= _LONG_BYTES else max(TOLD_AT_ONCE * _LONG_BYTES // len(frame), 1)
        )
        begin, stop = _uint(frame, first), _uint(frame, last)
        if decode(frame, role, end)[0] is not True or begin is None or stop is None:
            return
        behind = (stop - begin) % _SERIALS
        if behind >= _SERIALS // 2:
            return  # It ends before it begins.
        # Nobody has more than came: the engine passes by what was never sent.
        behind = min(behind, self._sent())
        if behind < at_once:
            return
        said = frame[skip(frame, last, end) : end]

        def of(*numbered: int) -> bytes:
            numbers = b"".join(b"\x70" + (number % _SERIALS).to_bytes(4, "big") for number in numbered)
            values = count.to_bytes(4, "big") + _TRUE + numbers + said
            body = frame[4:values_at] + b"\xd0" + len(values).to_bytes(4, "big") + values
            return (4 + len(body)).to_bytes(4, "big") + body

        some = of(begin, begin + at_once - 1)
        if len(some) <= self._frame_bytes_max:
            self._instead = some, of(begin + at_once, begin + behind)

    def _is_too_long(self, frame: bytes, at: int, end: int) -> bool:
        """Whether the engine is to hear of that state no more than counts."""
        size = end - at
        if size > _STATE_BYTES_MAX:
            return True
        try:
            values = _values(frame, at, end)
        except Rejected:
            return True  # The engine may find more there than anybody else.
        if values > _STATE_VALUES_MAX:
            return True
        return self._held_by_client() * (size + _VALUE_BYTES * values) > _COPIES_BYTES_MAX

    def _flowed(self, frame: bytes, fields: list[int], is_behind: bool) -> None:
        end = len(frame)
        if len(fields) > 8 and decode(frame, fields[8], end)[0] is True:
            if is_behind:
                # Once the engine has it, all that it tells of the link says that it is to be drained: also what came before.
                self._instead = b"", frame
                return
            self.has_drain = True
            self._drains_nothing = not decode(frame, fields[6], end)[0]
        handle = _uint(frame, fields[4]) if len(fields) >= 11 and frame[fields[10]] in MAPS else None
        if handle is None:
            return
        count, at, end = members(frame, fields[10], len(frame), MAPS)
        for _ in range(min(count // 2, _PROPERTIES_MAX)):
            key, at = decode(frame, at, end)
            if key == "txn-id" and at < end and frame[at] != NULL:
                name = self._presettled.pop((int.from_bytes(frame[6:8], "big"), handle), None)
                if name is not None:
                    self._acquiring.append(name)
                return
            at = skip(frame, at, end)


def _is_of_interest(data: bytes, at: int, end: int) -> bool:
    """Whether a flow may ask for more than credit."""
    find = data.find
    return find(_TRUE, at, end) >= 0 or find(_TRUE_BYTE, at, end) >= 0 or find(_TXN_ID, at, end) >= 0


def _code(descriptor: bytes, codes: dict[bytes, int]) -> int | None:
    """The number there, whichever it is, or that of the symbol there; None: it is none of these symbols."""
    if descriptor[:1] in (b"\x53", b"\x80"):
        return int.from_bytes(descriptor[1:], "big")
    return codes.get(descriptor[2:] if descriptor[:1] == b"\xa3" else descriptor[5:])


def _uint(frame: bytes, at: int) -> int | None:
    """The number there; None: it is none."""
    number = decode(frame, at, len(frame))[0] if frame[at] in UINT else None
    return number if isinstance(number, int) else None


def _fields(frame: bytes, at: int, end: int, fields_max: int) -> list[int]:
    """Where each of the first fields of a list begins."""
    count, first, last = members(frame, at, end, LISTS)
    places = []
    for _ in range(min(count, fields_max)):
        places.append(first)
        first = skip(frame, first, last)
    return places


def _values(frame: bytes, at: int, end: int) -> int:
    """How many values there are, those in lists and maps included; some more than may be, if they are more."""
    found, left = 0, [(at, end)]
    while left and found <= _STATE_VALUES_MAX:
        at, end = left.pop()
        while at < end and found <= _STATE_VALUES_MAX:
            found += 1
            constructor = frame[at]
            if constructor == 0:
                at += 1
                continue
            behind = contents(frame, at, end)[1]
            if constructor in _ARRAYS:
                found += _values_in_array(frame, at, behind)
            elif constructor in _COMPOUND:
                left.append(members(frame, at, end, _COMPOUND)[1:])
            at = behind
    return found


def _values_in_array(frame: bytes, at: int, end: int) -> int:
    """At most as many values are in an array: as it says, or where each of them has values in it as it has bytes."""
    first = contents(frame, at, end)[0]
    width = 1 if frame[at] == _SHORT_ARRAY else 4
    return max(int.from_bytes(frame[first : first + width], "big"), end - first)


def _with_others(frame: bytes, values_at: int, others: list[tuple[int, int, bytes]]) -> bytes:
    """The frame with other values in its list: each as (where one begins, where that ends, what is there now), in order."""
    count, at, end = members(frame, values_at, len(frame), LISTS)
    values = count.to_bytes(4, "big")
    for begin, behind, other in others:
        values += frame[at:begin] + other
        at = behind
    values += frame[at:end]
    body = frame[4:values_at] + b"\xd0" + len(values).to_bytes(4, "big") + values + frame[end:]
    return (4 + len(body)).to_bytes(4, "big") + body


def _short_state(frame: bytes, at: int, end: int, *, is_inside: bool = False) -> bytes:
    """The outcome in a state, and its transaction: nothing of what else it says. `is_inside`: of a transaction's already."""
    if frame[at] != 0:
        return _NULL_BYTE
    values_at = skip(frame, at + 1, end)
    head = frame[at:values_at]
    if len(head) > _HEAD_BYTES_MAX:
        return _NULL_BYTE
    code = _code(head[1:], _STATE_CODES)
    kept = []
    if code == _MODIFIED or (code == _TRANSACTIONAL and not is_inside):
        try:
            places = _fields(frame, values_at, end, 2)
            kept = [frame[place : skip(frame, place, end)] for place in places]
            if code == _TRANSACTIONAL and len(places) > 1:
                kept[1] = _short_state(frame, places[1], end, is_inside=True)
        except Rejected:
            kept = []
        if any(len(one) > _HEAD_BYTES_MAX for one in kept[:1]) or sum(map(len, kept)) > 2 * _HEAD_BYTES_MAX:
            # None at all: a transaction that nobody knows, and not that there is none.
            kept = []
    content = b"".join(kept)
    return head + b"\xc0" + bytes([len(content) + 1, len(kept)]) + content


def _first_field(frame: bytes, at: int) -> int | None:
    """Where the first field of a described list begins, if it has any."""
    if frame[at] != 0:
        return None
    values_at = skip(frame, at + 1, len(frame))
    if values_at >= len(frame) or frame[values_at] not in LISTS:
        return None
    count, first, last = members(frame, values_at, len(frame), LISTS)
    return first if count and first < last else None


def _texts(frame: bytes, places: list[int]) -> list[tuple[int, int]]:
    """Where the contents of those of these values that are texts begin and end."""
    return [contents(frame, place, len(frame)) for place in places if frame[place] in _TEXTS]
