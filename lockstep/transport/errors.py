"""Ends of connections and calls."""

import grpc


class ConnectionEnded(Exception):
    """The connection is no more, or the call on it: nothing more is heard or said."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
