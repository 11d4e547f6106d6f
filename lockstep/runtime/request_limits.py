"""How big the messages of requests may be: a table of all methods that have more to say than a few words.

Law: what carries messages of clients may be as big as they may; what names many of something has room for many; everything else
is small, and so is whatever a stranger makes a server keep for it.
"""

MESSAGE_BYTES_MAX = 160 * 1024 * 1024
"""Limit of one gRPC message: twice what a command may have (`command_bytes_max`), so that our limits are met first, by name."""
LIST_BYTES_MAX = 4 * 1024 * 1024
"""Of a request with a list: several hundred thousand positions, or tens of thousands of names; a window of the transport."""
REQUEST_BYTES_MAX = 64 * 1024
"""Of all others: names, ids and numbers; a hundred times what the longest of them take."""

LIMITS = {
    f"/lockstep.wire.v1.{method}": limit
    for limit, methods in (
        (MESSAGE_BYTES_MAX, ("Sessions/Open", "Store/Append", "Transactions/Publish")),
        (
            LIST_BYTES_MAX,
            (
                # Positions, and ids of messages.
                "Transactions/Accept",
                "Transactions/Settle",
                "Store/ReadMessages",
                # Where epochs begin in a log; what a backup has.
                "Primary/Subscribe",
                "Primary/Acknowledge",
                # Participants of a transaction.
                "Coordinator/Begin",
                "Coordinator/Enlist",
                "Coordinator/Close",
                "Coordinator/Commit",
                "Coordinator/Rollback",
                # Something of each resource set, or of each broker.
                "Cluster/SurveyDisk",
                "Cluster/RebuildMap",
                "Events/OpenSubscription",
                "Events/Plan",
                "Events/Read",
                "Events/Acknowledge",
                "Events/ChangeSubscription",
                "Events/FindBranches",
            ),
        ),
    )
    for method in methods
}


def request_bytes_max(path: str) -> int:
    """Of one message of a request to the method at this path."""
    return LIMITS.get(path, REQUEST_BYTES_MAX)
