"""Ends of micro-batches, and their parts."""

from lockstep.client.event_offsets import EventOffset
from lockstep.wire.v1 import events_pb2 as pb
from services.pipeline.options import offsets_from, plain
from services.pipeline.planning import PlannedPart, next_cut, parts_of


def at(**indexes: int) -> dict[str, EventOffset]:
    return {name: EventOffset(index, 1) for name, index in indexes.items()}


def test_without_a_target_the_plan_is_the_cut() -> None:
    assert next_cut(at(east=1), at(east=5, west=2)) == at(east=5, west=2)


def test_no_cut_goes_by_the_target_and_none_goes_back() -> None:
    assert next_cut(at(east=1, west=4), at(east=9, west=4), [at(east=5, west=3)]) == at(east=5, west=4)


def test_a_query_reaches_its_target_though_the_plan_moves_only_where_it_has_arrived() -> None:
    start, target = at(east=5, west=1), at(east=5, west=8)
    assert next_cut(start, at(east=9, west=1), [target]) == target


def test_a_plan_that_does_not_move_is_passed_by_the_next_cut_on_the_way() -> None:
    way = [at(east=3, west=1), at(east=5, west=4), at(east=8, west=9)]
    assert next_cut(at(east=3, west=2), at(east=3, west=2), way) == at(east=5, west=4)
    assert next_cut(at(east=3, west=2), at(east=7, west=2), way) == at(east=7, west=2)


def test_a_query_at_its_target_gets_nothing_more() -> None:
    start = at(east=5, west=8)
    assert next_cut(start, at(east=9, west=9, north=4), [at(east=5, west=8)]) == start


def test_a_set_that_came_after_the_start_is_read_up_to_the_target() -> None:
    assert next_cut(at(east=5), at(east=5, west=3), [at(east=5, west=2)]) == at(east=5, west=2)


def test_a_set_that_whoever_planned_has_not_heard_of_is_not_read_ahead_of_the_plan() -> None:
    """A transaction may lie across: behind the plan in one set, below the target in the other."""
    start, target = at(east=0), at(east=10, west=10)
    assert next_cut(start, at(east=5), [target]) == at(east=5)
    assert next_cut(at(east=5), at(east=10, west=10), [target]) == target, "once it was heard of"
    assert next_cut(start, at(east=0), [target]) == target, "a cut of the way is closed by itself"


def test_parts_are_split_where_the_plan_says_so_and_empty_ranges_have_none() -> None:
    plan = pb.PlanResponse()
    planned = plan.ranges.add(to=EventOffset(30, 1).in_set("east"), brokers=["b:1", "a:1"])
    planned.splits.extend(EventOffset(index, 1).in_set("east") for index in (5, 10, 20, 30))
    parts = parts_of(at(east=5, west=4), at(east=30, west=4), [plan])
    assert parts == [
        PlannedPart("east", EventOffset(first, 1), EventOffset(last, 1), ("b:1", "a:1"))
        for first, last in ((5, 10), (10, 20), (20, 30))
    ]


def test_a_range_of_several_plans_is_split_where_each_says_so_and_where_it_ends() -> None:
    plans = []
    for splits, end in (((5, 10), 20), ((), 20), ((25,), 30)):
        plan = pb.PlanResponse()
        planned = plan.ranges.add(to=EventOffset(end, 1).in_set("east"), brokers=[f"{end}:1"])
        planned.splits.extend(EventOffset(index, 1).in_set("east") for index in splits)
        plans.append(plan)
    parts = parts_of(at(east=0), at(east=30), plans)
    assert [part.end.index for part in parts] == [5, 10, 20, 25, 30]
    assert {part.brokers for part in parts} == {("30:1",)}


def test_a_batch_whose_plan_is_forgotten_has_one_part_for_each_set() -> None:
    parts = parts_of(at(east=5), at(east=30, west=2), [])
    assert parts == [
        PlannedPart("east", EventOffset(5, 1), EventOffset(30, 1)),
        PlannedPart("west", EventOffset(0, 0), EventOffset(2, 1)),
    ]


def test_a_checkpoint_keeps_whose_epochs_its_offsets_name() -> None:
    kept = plain({"east": EventOffset(5, 2, 7), "west": EventOffset(3, 1)})
    assert kept == {"east": [5, 2, 7], "west": [3, 1]}, "as an older version wrote it where nobody has said"
    read = offsets_from(kept)
    assert (read["east"].reign, read["west"].reign) == (7, 0)
