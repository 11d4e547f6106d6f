"""The end of a reign, as the primary's parts say it."""


class ReignOver(Exception):
    """This process must not go on as primary of this epoch: a higher epoch began, or it cannot vouch for its log any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DiskDamaged(ReignOver):
    """The own store does not have what it should: its disk is a damaged one, whatever the store itself says (R10)."""
