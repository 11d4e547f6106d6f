"""The PySpark data source `lockstep`: committed events as a stream (`readStream`) and as a batch (`read`).

Law: a micro-batch is a consistent cut, and the same offsets give the same rows, however often, on whatever worker. Spark pickles
the readers and forks its workers: nothing here holds a connection, or imports gRPC, before a method that needs it runs.

Spark calls `initialOffset` more than once before the first checkpoint: a new group is pinned by the brokers, not by the answer.
It calls `commit` one batch late and not at all for the last one, so what is acknowledged is always behind what is in the sinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from services.pipeline.schema import SCHEMA

if TYPE_CHECKING:
    from lockstep.client.event_offsets import EventOffset
    from lockstep.client.events import EventsClient
    from lockstep.wire.v1 import events_pb2 as pb
    from services.pipeline.options import SourceOptions

NAME = "lockstep"


def register(spark: SparkSession) -> None:
    """Makes the source known to a session."""
    spark.dataSource.register(LockstepSource)


class LockstepSource(DataSource):
    """Made by Spark for each query and each read."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return LockstepReader(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LockstepStreamReader(dict(self.options))


_Place = tuple[int, int, int]
"""An `EventOffset` in plain values."""


class Part(InputPartition):
    """One task's share, in plain values."""

    def __init__(self, resource_set: str, begin: _Place, end: _Place, brokers: tuple[str, ...]) -> None:
        super().__init__(resource_set)
        self.resource_set = resource_set
        self.begin = begin
        self.end = end
        self.brokers = brokers


class LockstepStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the driver's planning process as long as the query; copies of it read on workers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._connected: EventsClient | None = None
        self._plan: pb.PlanResponse | None = None
        """The last one: its splits and brokers are for the batch that it ends."""
        self._is_bounded = False
        """It ends when all is read that was committed when it began."""
        self._way: list[dict[str, EventOffset]] = []
        """Of such a query: cuts up to there."""

    def __getstate__(self) -> dict[str, Any]:
        # What goes to workers: neither the connection nor plans.
        return {**vars(self), "_connected": None, "_plan": None, "_way": []}

    def initialOffset(self) -> dict[str, Any]:
        from services.pipeline.options import plain

        opened = self._parsed().open(self._client())
        if self._is_bounded and not self._way:
            self._plan_way(opened)
        return plain(opened)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._parsed().max_events
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True
        # Whether there is a checkpoint is not known yet. Without one Spark asks for the initial offset next.
        parsed, client = self._parsed(), self._client()
        if parsed.is_open(client):
            self._plan_way(parsed.open(client))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from services.pipeline.options import MAX_EVENTS, offsets_from, plain
        from services.pipeline.planning import cut_of, next_cut

        options, known = self._parsed(), offsets_from(start)
        if self._is_bounded and not self._way:
            self._plan_way(options.find(self._client()))
        events_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        wait_seconds = 0.0 if self._way else options.wait_seconds
        while True:
            self._plan = plan = self._client().plan(
                options.group,
                known,
                max_events=events_max,
                wait_seconds=wait_seconds,
                hold_seconds_max=options.hold_seconds,
            )
            if not events_max or not plan.has_more:
                break
            if options.hold_seconds and any(planned.held_since_ms for planned in plan.ranges):
                # Where time counts, all sets go as far as lets the held ones go: else these would come later by any time.
                events_max = 0
            elif cut_of(plan) == known:
                # A plan of so little gets nowhere: transactions lie across every cut that is so near.
                events_max = 2 * events_max if events_max < MAX_EVENTS else 0
            else:
                break
            wait_seconds = 0.0
        return plain(next_cut(known, cut_of(plan), self._way))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        from services.pipeline.options import offsets_from

        begins, ends = offsets_from(start), offsets_from(end)
        if begins.keys() < ends.keys():
            # A resource set that came later begins where the group stands in it: nothing of it is acknowledged yet.
            begins = {**self._parsed().find(self._client()), **begins}
        return _parts(begins, ends, [self._plan] if self._plan is not None else [])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Part), "as `partitions` made it"
        return _read(self._parsed(), partition)

    def commit(self, end: dict[str, Any]) -> None:
        from services.pipeline.options import offsets_from

        self._client().acknowledge(self._parsed().group, offsets_from(end))

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _plan_way(self, stands: dict[str, EventOffset]) -> None:
        """`stands`: the group, in every set. A plan from nowhere lacks those that whoever plans has not heard of yet."""
        from services.pipeline.planning import cut_of, plans_in_a_row

        self._way = [cut_of(plan) for plan in plans_in_a_row(self._client(), self._parsed(), stands)]

    def _parsed(self) -> SourceOptions:
        from services.pipeline.options import SourceOptions

        return SourceOptions.parse(self._options)

    def _client(self) -> EventsClient:
        if self._connected is None:
            self._connected = self._parsed().connect()
        return self._connected


class LockstepReader(DataSourceReader):
    """All that is kept for a group, up to `end`, or up to what is committed when the read is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> list[InputPartition]:
        import json

        from services.pipeline.options import SourceOptions, offsets_from
        from services.pipeline.planning import cut_of, plans_in_a_row

        options = SourceOptions.parse(self._options)
        given = offsets_from(json.loads(options.end)) if options.end else None
        until = {name: offset.index for name, offset in given.items()} if given is not None else None
        with options.connect() as client:
            begins = options.open(client)
            plans = plans_in_a_row(client, options, begins, until)
        ends = given if given is not None else cut_of(plans[-1])
        # Spark wants one at least; what it gets instead of none reads nothing.
        return _parts(begins, ends, plans) or [Part("", (0, 0, 0), (0, 0, 0), ())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from services.pipeline.options import SourceOptions

        assert isinstance(partition, Part), "as `partitions` made it"
        return _read(SourceOptions.parse(self._options), partition)


def _parts(
    begins: dict[str, EventOffset], ends: dict[str, EventOffset], plans: list[pb.PlanResponse]
) -> list[InputPartition]:
    from services.pipeline.planning import parts_of

    return [
        Part(one.resource_set, _place(one.begin), _place(one.end), one.brokers)
        for one in parts_of(begins, ends, plans)
    ]


def _place(offset: EventOffset) -> _Place:
    return offset.index, offset.epoch, offset.reign


def _read(options: SourceOptions, part: Part) -> Iterator[Any]:
    """The record batches of a part."""
    from lockstep.client.event_offsets import EventOffset
    from services.pipeline.columns import as_record_batch

    if part.begin == part.end:
        return
    with options.connect() as client:
        for batch in client.read(
            part.resource_set,
            EventOffset(*part.begin),
            EventOffset(*part.end),
            brokers=part.brokers,
            without_content=options.without_content,
        ):
            if batch.events.kinds:
                yield as_record_batch(batch, with_content=not options.without_content)
