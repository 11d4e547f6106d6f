"""Ends of connections and calls."""

import grpc


class ConnectionEnded(Exception):
    """The connection is no more, or the call on it: nothing more is heard or said."""

    def __init__(self, code: grpc.StatusCode, details: str, was_refused: bool = False) -> None:
        """`was_refused`: the other side says that it has done nothing for the call."""
        super().__init__(details)
        self.code = code
        self.details = details
        self.was_refused = was_refused
