"""Which file system a directory is on."""

from pathlib import Path


def filesystem_of(directory: Path, mounts: str | None = None) -> str:
    """The type of the file system that a directory is on; "" if the table of mounts does not say. `mounts`: that table's text.

    Raises `OSError` where the kernel has no such table (proc(5)).
    """
    target = directory.resolve()
    table = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    best, found = -1, ""
    for line in table.splitlines():
        _, point, kind, *_ = line.split(" ")
        place = Path(point.encode().decode("unicode_escape"))
        if target.is_relative_to(place) and len(place.parts) >= best:
            # A later mount on the same place covers the earlier one.
            best, found = len(place.parts), kind
    return found
