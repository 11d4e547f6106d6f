"""P3 Isolated: nobody is shown what an open transaction published, and nobody else gets what one has accepted."""

from collections.abc import Iterator

from tests.simulation.checkers.record import Record, seconds


def check(record: Record) -> Iterator[str]:
    for delivered in record.history.deliveries:
        copies = record.copies(delivered.set_name, delivered.queue)
        for seen in delivered.messages:
            copy = copies.get(seen.position)
            what = (
                f"{delivered.client} was given {seen.body[:24]!r} of {delivered.queue} at {seconds(delivered.time_us)}, "
                f"epoch {delivered.epoch}, commit index {delivered.commit_index},"
            )
            if copy is None:
                yield f"{what} which no committed record ever put there"
            elif copy.body != seen.body:
                yield f"{what} where the log has {copy.body[:24]!r}"
            elif copy.visible > delivered.commit_index:
                yield f"{what} which became visible at {copy.visible} only"
            elif copy.removed <= delivered.commit_index:
                yield f"{what} although it was gone at {copy.removed}"
            else:
                for start, end in copy.locked:
                    if start <= delivered.commit_index < end:
                        yield f"{what} while a transaction had it locked from {start} to {end}"
