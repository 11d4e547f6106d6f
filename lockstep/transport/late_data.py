"""Data that comes for calls that are over: their other side had sent it before it knew.

Law: no reader takes it, so no window holds it back: no more may come than the windows of those calls allowed when they ended.
"""

EMPTY_FRAME_BYTES = 4 << 10
"""A frame of no bytes counts for so many: windows do not hold those back at all."""


class LateData:
    """Lives as long as its connection."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: of all of these calls together, the connection's window."""
        self._bytes_max = bytes_max
        self._left = 0

    def expect(self, window: int) -> None:
        """The other side has not ended a call that is over, and may have sent so much before it knows."""
        self._left = min(self._left + window + EMPTY_FRAME_BYTES, self._bytes_max)

    def count(self, length: int) -> bool:
        """A frame of so many bytes came; False: that is more than all of them allowed."""
        self._left -= length or EMPTY_FRAME_BYTES
        return self._left >= 0
