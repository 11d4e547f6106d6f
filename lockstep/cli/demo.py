"""`lockstep demo`: see the package."""


def demo() -> None:
    """To come."""
