"""`h2` as connections use it: bounded field blocks, and no count of streams.

Law: no frame costs more than it is long, whatever streams there are and were.
"""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from hpack import Decoder, HeaderTuple, OversizedHeaderListError

HEADERS_BYTES_MAX = 64 << 10
"""Of the headers of a call, as SETTINGS_MAX_HEADER_LIST_SIZE counts them; longer ones end their call."""
FIELDS_BYTES_MAX = 96 << 10
"""Of a field block, and of the headers in it. Nothing that comes behind a block can be understood without it, so a longer one
ends the connection; and this one takes some 10 ms at worst."""
TABLE_CHANGES_MAX = 2
"""In one field block: no more of them say anything (RFC 7541, 4.2)."""
SWEPT_STREAMS_MIN = 64


class FieldDecoder(Decoder):
    """Of a connection's field blocks, for its `h2`: all fields but `content-length`.

    `h2` counts what comes as DATA against that, sees nothing of it, and would end the connection. Nobody else needs it: each
    message says how long it is.
    """

    def __init__(self) -> None:
        super().__init__(FIELDS_BYTES_MAX)
        self.headers_bytes = 0
        """Of the last field block, as HEADERS_BYTES_MAX counts them."""
        self._table_changes = 0

    @property
    def header_table_size(self) -> int:
        """Bytes of the table that fields enter."""
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        self._table_changes += 1
        if self._table_changes > TABLE_CHANGES_MAX:
            raise OversizedHeaderListError("a field block changes its table again and again")
        self.header_table.maxsize = value

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        if len(data) > FIELDS_BYTES_MAX:
            raise OversizedHeaderListError(f"a field block has {len(data)} bytes")
        self._table_changes = 0
        fields = [field for field in super().decode(data, raw) if field[0] != b"content-length"]
        self.headers_bytes = sum([len(name) + len(value) + 32 for name, value in fields])
        return fields


class Http2(H2Connection):
    """The state of one connection.

    How many streams there may be is the matter of its owner: `h2` would count them anew at the beginning of each.
    """

    def __init__(self, is_client: bool, settings: dict[SettingCodes, int]) -> None:
        super().__init__(
            H2Configuration(
                client_side=is_client,
                header_encoding=None,
                # What the other side says of a call is the call's matter: no word of it ends the connection.
                validate_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        initial = {**settings, SettingCodes.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX}
        self.local_settings = Settings(client=is_client, initial_values=initial)
        self.fields = self.decoder = FieldDecoder()
        # Before the other side knows the settings h2 holds it to the smallest frames.
        self.max_inbound_frame_size = FIELDS_BYTES_MAX
        self._swept_at = SWEPT_STREAMS_MIN

    @property
    def open_inbound_streams(self) -> int:
        """None as far as `h2` is to know. Asked for at the beginning of each: forgets those that are over, once they are half."""
        if len(self.streams) >= self._swept_at:
            self._swept_at = 2 * super().open_inbound_streams + SWEPT_STREAMS_MIN
        return 0

    @property
    def open_outbound_streams(self) -> int:
        """As `open_inbound_streams`."""
        if len(self.streams) >= self._swept_at:
            self._swept_at = 2 * super().open_outbound_streams + SWEPT_STREAMS_MIN
        return 0
