"""Limits of a store's core, each with the reason for its default. `settings.py` reads them, the simulator makes them small."""

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Bytes, where a name says nothing else."""

    sets_max: int = 1000
    """Sets that were asked for since the start: each has a directory, lanes and, once something is written, a segment."""
    segment_bytes: int = 64 * MIB
    """Size of a segment file. Recovery replays up to one and a half times `unconsolidated_segments` of them, so it bounds that
    time; smaller ones cost more creations.
    """
    page_bytes: int = 4 * KIB
    """A group is filled up with zeros to the end of such a page. One of which only a part is written is read from the disk
    before, unless it is in memory, and every sync would wait for that: 80 us. What a sync writes is pages, filled up or not.
    """
    group_bytes_max: int = 4 * MIB
    """Frames that one sync makes durable. Beyond about 1 MiB a bigger group gains nothing; a single request may be bigger."""
    group_frames_max: int = 1000
    """The same in number, each request counted as one, too: some microseconds of the event loop for each, however small it is.
    What comes with more at once is taken up in parts.
    """
    piece_bytes: int = 8 * MIB
    """Of a group that is bigger, so much is written and synced at a time, and behind each piece its writer hears that the disk
    gets on: one that takes seconds for a message of 64 MiB is slow, and not one that hangs.
    """
    scan_bytes: int = 1 * MIB
    """One read of a recovery, which a lane's thread looks through before the next one."""
    chunk_bytes: int = 1 * MIB
    """One chunk of items or frames on its way to a broker: gRPC's best message size."""
    chunks_unsent_max: int = 2
    """Chunks that may wait for a slow reader before no more is read for it."""
    contents_bytes: int = 4 * MIB
    """Contents of messages in one answer, at least one: whoever asked for more asks again for the rest. A broker asks for 1 MiB
    at a time, unless a single message is bigger.
    """
    contents_max: int = 1000
    """The same in number, as many as a broker asks for."""
    silent_ticks_max: int = 10
    """Ticks for which a stream may take none of the chunks that wait for it before nobody waits for it any more: the consolidator
    for a reader of the snapshot, another writer for a load. On a network that is slow a chunk takes a tenth of one.
    """
    unreadable_ticks: int = 5
    """Ticks in which something could not be read before it is damage: so long a device or its bus may take to come back, and
    those who wait for the set try about once in each.
    """
    unusable_ticks: int = 1
    """The same for what is whole, and cannot be applied or is no state: once that may be a fault of what is in memory, and
    that is made anew before it is tried again.
    """
    unreadable_forgotten_ticks: int = 60
    """Ticks without any such failure after which those before are not counted any more."""
    consolidated_bytes: int = 256 * KIB
    """Frames that the consolidator applies before it gives way: 2-3 ms for messages of 1 KiB."""
    unconsolidated_bytes: int = 512 * MIB
    """Committed frames that lie behind the consolidator before it goes on at once, so that a burst is journalled first: to
    consolidate it meanwhile takes two thirds of what a store does then. A recovery replays up to half as many again.
    """
    unconsolidated_segments: int = 8
    """As many bytes at most as so many segments have."""
    unconsolidated_part: int = 4
    """Less where there is little room: this part of what the disk has left for the journal, yet a segment's worth."""
    unconsolidated_quiet_bytes: int = 256 * KIB
    """The same when nothing was appended for a tick, or when it has waited for `unconsolidated_ticks`. Such a piece accepts up to
    80,000 messages; each turn costs some tenths of a millisecond beside its work.
    """
    unconsolidated_ticks: int = 5
    """So long as many may lie behind it while others are appended, ticks of a burst not counted. A recovery replays what was
    written meanwhile, and loads the messages that were accepted meanwhile, beside what was not flushed.
    """
    burst_bytes: int = 16 * MIB
    """Frames appended from one tick to the next that make it one of a burst: of these, `unconsolidated_bytes` are there in half
    a minute.
    """
    dense_bytes: int = 512 * KIB
    """The same that make it a dense one. Small transactions write as much, and less than a burst, however fast they come;
    accepting as ranges writes less.
    """
    dense_ticks: int = 4
    """Dense ticks that count as one of `unconsolidated_ticks`: to consolidate small transactions meanwhile costs their clients
    a tenth of the rate and more. A recovery replays 20 s of them, in the place of 5, in some tenths of a second more.
    """
    consolidator_rest: float = 3.0
    """While others append, the consolidator rests so many times as long as it works: the stores of a set begin at the same time,
    and on a small machine nobody else would have a processor for some tenths of a second. It rests less the more lies behind
    it, from `unconsolidated_bytes` on, and at one and a half times that it does not.
    """
    unflushed_items_max: int = 50_000
    """Items written to the snapshot and not flushed, in a small set: about as many as fill a memtable. A crash takes the snapshot
    back by as much, and a recovery loads messages that are gone by then.
    """
    unflushed_fraction: int = 8
    """The same in a big set: at most this part of what is alive, so that flushes cost in proportion to what is written."""
    unflushed_quiet_items_max: int = 1_000
    """The same when nothing is being appended."""
    batch_items_max: int = 2_000
    """Items in one write to the snapshot: RocksDB's binding holds the GIL for about 1 us for each."""
    reserve_bytes: int = 256 * MIB
    """Not counted in the room that brokers are told of: they stop publishing when no more is left. Half of it is for what they
    still write (accepts, commits, deletions), the other half for the snapshot, so that a full disk can still consolidate, and
    so free, what it has.
    """
    owed_bytes_max: int = 16 << 30
    """Segments of one set that stay only because committed events in them are owed to a group, or because a transaction in them
    has no outcome. Beyond it the oldest go, and whoever comes for them hears OUT_OF_RANGE: readers that never come back must not
    fill the disk. They go as well when less than twice the reserve is free. 16 GiB last a set that takes 2 MB/s for two hours.
    """

    @property
    def unconsolidated_most(self) -> int:
        """Bytes that may lie behind the consolidator before it goes on at once, where there is room."""
        return min(self.unconsolidated_bytes, self.unconsolidated_segments * self.segment_bytes)
