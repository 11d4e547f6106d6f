"""A broker as a witness: when it becomes one, what it answers, and whom it lets go."""

from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.stamps import NO_STAMPS, Stamps
from services.broker.core.witness import BEGINNINGS_AT_ONCE, STAMPED_EVERY_MS, EtcdSeen, WitnessKeeper

NAMES = A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")


class Etcd:
    """The key of the stamps and the witnesses' keys; keepers write when they are asked to look."""

    def __init__(self) -> None:
        self.stamps: Stamps = NO_STAMPS
        self.stamps_revision = 0
        self.revision = 10
        self.present: dict[BrokerId, str] = {}
        self.keepers: dict[BrokerId, WitnessKeeper] = {}
        self.leases: dict[BrokerId, int] = {}
        self.now_ms = 0

    def start(self, *names: BrokerId, life: int = 1) -> None:
        for name in names:
            self.keepers[name] = WitnessKeeper(name, Incarnation(f"{name}-{life}"))
            self.leases[name] = 100 * life + NAMES.index(name)

    def die(self, *names: BrokerId, with_keys: bool = True) -> None:
        for name in names:
            del self.keepers[name]
            if with_keys:
                self.present.pop(name, None)

    def look(self, name: BrokerId) -> bool:
        """Whether it wrote."""
        seen = EtcdSeen(self.stamps, self.stamps_revision, self.revision, self.present)
        wanted = self.keepers[name].look(seen, self.leases[name], self.now_ms)
        if wanted is None:
            return False
        self.revision += 1
        self.stamps, self.stamps_revision = wanted.stamps, self.revision
        if wanted.token:
            self.present[name] = wanted.token
        for keeper in self.keepers.values():
            keeper.stamped(self.now_ms)
        return True

    def settle(self) -> None:
        for _ in range(20):
            wrote = [self.look(name) for name in sorted(self.keepers)]
            if not any(wrote):
                return
        raise AssertionError("they write for ever")

    def there(self) -> tuple[list[BrokerId], list[BrokerId]]:
        """Who are the witnesses, and who of them is silent."""
        return [one.broker for one in self.stamps.witnesses], list(self.stamps.silent)


def running(*names: BrokerId) -> Etcd:
    etcd = Etcd()
    etcd.start(*names)
    etcd.settle()
    return etcd


def test_whoever_becomes_a_witness_calls_the_others_and_they_answer() -> None:
    etcd = running(A)
    assert etcd.there() == ([A], [])
    etcd.start(B)
    assert etcd.look(B) and etcd.there() == ([A, B], [A])
    etcd.settle()
    assert etcd.there() == ([A, B], [])


def test_nobody_is_one_without_a_lease() -> None:
    etcd = Etcd()
    etcd.start(A)
    etcd.leases[A] = 0
    assert not etcd.look(A)


def test_who_has_died_before_anothers_eyes_is_not_waited_for() -> None:
    etcd = running(A, B, C)
    etcd.die(B)
    etcd.settle()
    assert etcd.there() == ([A, C], [])


def test_one_that_was_called_and_has_died_is_let_go_by_who_had_met_it_before() -> None:
    etcd = running(A, B)
    etcd.die(B)
    etcd.stamps = etcd.stamps.called()
    etcd.settle()
    assert etcd.there() == ([A], [])


def test_when_all_have_died_each_has_to_come_back() -> None:
    """Its disk may remember what no other does, and what a restored etcd lacks."""
    etcd = running(A, B, C)
    etcd.die(A, B, C, with_keys=False)
    etcd.start(A, B, life=2)
    etcd.settle()
    assert etcd.there() == ([A, B, C], [C]), "though its key of before is still there"
    etcd.present.pop(C)
    etcd.settle()
    assert etcd.there() == ([A, B, C], [C]), "though its key has gone before their eyes"
    etcd.start(C, life=2)
    etcd.settle()
    assert etcd.there() == ([A, B, C], [])


def test_another_lease_is_another_beginning() -> None:
    """Between the two it has seen nothing: others may have lived on, and died."""
    etcd = running(A, B)
    etcd.present.pop(A)
    etcd.look(B)
    assert etcd.there() == ([B], [])
    etcd.die(B)
    etcd.leases[A] = 900
    etcd.settle()
    assert etcd.there() == ([A, B], [B])


def test_a_stamp_is_put_by_one_of_them_when_etcd_has_gone_on_and_not_more_often_than_is_said() -> None:
    etcd = running(A, B)
    newest = etcd.stamps.newest
    etcd.now_ms += STAMPED_EVERY_MS
    etcd.settle()
    assert etcd.stamps.newest == newest, "nothing has happened"
    etcd.revision += 5
    etcd.settle()
    assert etcd.stamps.newest != newest
    newest = etcd.stamps.newest
    etcd.revision += 5
    etcd.now_ms += STAMPED_EVERY_MS - 1
    etcd.settle()
    assert etcd.stamps.newest == newest
    etcd.now_ms += 1
    assert etcd.look(B) and not etcd.look(A)
    assert etcd.stamps.newest is not None and etcd.stamps.newest.revision == etcd.revision - 1


def test_a_lost_key_is_put_again() -> None:
    etcd = running(A)
    etcd.present.clear()
    assert etcd.look(A) and etcd.present


def test_two_processes_of_one_name_do_not_drive_each_other_out_as_fast_as_they_can() -> None:
    etcd, seconds = Etcd(), 5
    etcd.start(A)
    processes = [(WitnessKeeper(A, Incarnation(f"a-{number}")), 900 + number) for number in range(2)]
    beginnings = 0
    for _ in range(seconds * 100):
        for etcd.keepers[A], etcd.leases[A] in processes:
            beginnings += etcd.look(A)
        etcd.now_ms += 10
    assert 2 < beginnings <= 2 * (BEGINNINGS_AT_ONCE + seconds)
