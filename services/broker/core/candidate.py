"""A replica that stands for promotion: when it asks etcd, and what it makes of the answers (DESIGN R5, R7, R9).

Law: a promotion counts as won only when this process can confirm it as the very one that it asked for last; any other is left
alone, and the next epoch begins. Every attempt signs another `change`, so that no two of them are ever the same entry.
"""

from collections.abc import Callable
from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import AnyEffect, Note, PromoteSelf
from lockstep.core.ids import EPOCH_MAX, BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import SwapAnswered, Verdict
from lockstep.core.store_protocol import SetOpened
from services.backup.core.backup import BackupCore
from services.backup.core.backup_memory import BackupState, FoundDamage
from services.broker.core.promotion import Candidacy, Standing, candidacy, data_loss_candidacy
from services.broker.core.set_facts import SetFacts
from services.broker.core.set_lease import SetLease
from services.broker.core.settings import ReplicaSettings


def obstacle(broker: BrokerId, set_map: SetMap | None, backup: BackupCore | None) -> str:
    """Why an operator's word (R7) could not make this replica the set, as far as is known; "": it could."""
    if set_map is None or broker not in set_map.brokers:
        return f"the map does not have the set on {broker}"
    if backup is None or (backup.opened is None and not backup.fenced_at):
        return f"the store of {broker} has not opened the set"
    highest = max(backup.fenced_at, backup.opened.highest_epoch if backup.opened is not None else 0)
    if highest >= EPOCH_MAX:
        return (
            f"the disk of {broker} has seen epoch {highest}, and there is none above: it takes another disk"
        )
    if backup.opened is None:
        return ""  # It is opened in the epoch that it has seen, once that is an operator's word.
    if backup.state is BackupState.DAMAGED:
        if not set_map.names_disk(backup.opened.disk):
            return f"the disk of {broker} is damaged, and the map does not name it"
        return _nothing_before_damage(broker, backup.opened, backup.found_damage)
    return "" if backup.is_loaded else f"{broker} has not read its disk yet"


def _nothing_before_damage(broker: BrokerId, opened: SetOpened, found: FoundDamage | None) -> str:
    """Why the store would not end the log before what is damaged, and what an operator can do then; "": it would."""
    is_found_here = found is not None and found.is_unusable and found.reason == opened.damage
    if opened.has_no_state:
        what = f"of the disk of {broker} no state is left that the set could go on from: {opened.damage}"
    elif found is not None and is_found_here and found.first <= opened.snapshot_index:
        what = (
            f"what this version cannot use of the disk of {broker} is in its snapshot, up to index {opened.snapshot_index}, and "
            f"nothing lies before that: {opened.damage}"
        )
    else:
        return ""
    return (
        f"{what}. Accept the loss of another broker, whose disk can be used; where there is none, restore a backup, or give "
        f"{broker} an empty disk and accept the loss of all that the set had"
    )


class Candidate:
    """Lives as long as its replica, which drives it and leads what it wins."""

    def __init__(
        self,
        set_name: SetName,
        broker: BrokerId,
        facts: SetFacts,
        lease: SetLease,
        settings: ReplicaSettings,
        next_request: Callable[[], int],
    ) -> None:
        """`next_request` numbers what the replica asks of etcd."""
        self._set_name = set_name
        self._broker = broker
        self._next_request = next_request
        self._facts = facts
        self._lease = lease
        self._settings = settings
        self.asked: Candidacy | None = None
        """The promotion sent last, while it is not answered or in doubt."""
        self.asked_lease_id = 0
        """The lease under which it puts the lease key."""
        self._asked_revision = 0
        """The entry's that it compares: as soon as there is another entry, it cannot land any more."""
        self._request = 0
        self._is_answer_pending = False
        self._attempts = 0
        self._not_before_ms = 0
        self._unled_since_ms: int | None = None
        self._loss_accepted_in: Epoch | None = None
        self._is_damage_accepted = False

    def accept_data_loss(self) -> bool:
        """R7: only while nobody leads; answers whether it is so. Forgotten as soon as somebody does, seen or not: given up is
        what the present epoch had, and nothing of a later one.
        """
        is_accepted = not self._facts.is_led
        if is_accepted:
            self._facts.take_shown()
        set_map = self._facts.set_map
        self._loss_accepted_in = set_map.epoch if set_map is not None and is_accepted else None
        self._is_damage_accepted = is_accepted
        return is_accepted

    @property
    def _is_loss_accepted(self) -> bool:
        set_map = self._facts.set_map
        return set_map is not None and set_map.epoch == self._loss_accepted_in

    def fence_to_open(self, backup: BackupCore) -> Epoch:
        """In which epoch to open a store that has seen more than etcd, if an operator takes its disk all the same; 0: none."""
        is_accepted = self._is_loss_accepted and not self._facts.is_led
        return backup.fenced_at if is_accepted and backup.fenced_at < EPOCH_MAX else Epoch(0)

    def takes_damage(self) -> bool:
        """Whether the operator's command may be given to the own damaged disk: once, and only while nobody leads."""
        is_accepted = self._is_loss_accepted and self._is_damage_accepted and not self._facts.is_led
        self._is_damage_accepted = False
        return is_accepted

    def wait(self, now: Now, for_ms: int) -> None:
        """Others first: nothing is asked for a moment."""
        self._not_before_ms = max(self._not_before_ms, now.boottime_ms + for_ms)

    def go_first(self) -> None:
        """The set is this one's to take: whom it waited for before is not to come any more."""
        self._not_before_ms = 0

    def forget(self) -> None:
        """What was asked is of no interest any more."""
        self.asked, self._is_answer_pending, self._loss_accepted_in = None, False, None

    def stand(self, backup: BackupCore | None, incarnation: Incarnation, now: Now) -> list[AnyEffect]:
        """Ask to be promoted when nobody leads and this replica may."""
        if self._facts.is_led:
            self._unled_since_ms = self._loss_accepted_in = None
            return []
        if self._unled_since_ms is None:
            self._unled_since_ms = now.boottime_ms
        set_map = self._facts.set_map
        if set_map is None or backup is None or backup.opened is None or not backup.is_loaded:
            return []
        if self._is_answer_pending or now.boottime_ms < self._not_before_ms or not self._lease.is_valid(now):
            return []
        standing = Standing(self._broker, backup.opened.disk, incarnation, backup.can_stand_unrestarted)
        if standing.broker not in set_map.brokers or self._is_others_turn(set_map, standing, now):
            return []
        if self._is_loss_accepted:
            found: Candidacy | None = data_loss_candidacy(set_map, standing, backup.opened.highest_epoch)
        elif self._facts.is_ahead_of_etcd(backup.opened):
            self._not_before_ms = now.boottime_ms + 1000
            details = f"disk has epoch {backup.opened.highest_epoch}, generation {backup.opened.generation!r}"
            return [Note(self._set_name, "ahead of etcd", details)]
        else:
            found = candidacy(set_map, standing, self._facts.presences)
        if found is None:
            return []
        return [self._ask(found)]

    def _is_others_turn(self, set_map: SetMap, standing: Standing, now: Now) -> bool:
        """A new set belongs to the first of its brokers; the others step in one after the other."""
        assert self._unled_since_ms is not None
        place = set_map.brokers.index(standing.broker)
        waited_ms = now.boottime_ms - self._unled_since_ms
        return set_map.epoch == 0 and waited_ms < place * self._settings.first_promotion_step_ms

    def _ask(self, found: Candidacy) -> PromoteSelf:
        self._attempts += 1
        target = replace(found.target, change=found.target.change + self._attempts)
        self.asked = replace(found, target=target)
        self.asked_lease_id = self._lease.lease_id
        self._asked_revision = self._facts.revision
        self._request, self._is_answer_pending = self._next_request(), True
        return PromoteSelf(
            self._set_name,
            self._request,
            self._facts.read,
            target,
            found.presences,
            is_mark_compared=not self._is_loss_accepted,
        )

    def answered(self, given: SwapAnswered, now: Now) -> list[AnyEffect]:
        """etcd's answer. What is in doubt may land later, and is confirmed then by the entry itself."""
        asked = self.asked
        if given.request != self._request or asked is None or not self._is_answer_pending:
            return []
        self._is_answer_pending = False
        if given.verdict is Verdict.DONE:
            if given.mod_revision > self._facts.revision:
                self._facts.written(asked.target, given.mod_revision)
            return []
        self.wait(now, self._settings.promotion_retry_ms)
        if given.verdict is Verdict.FAILED:
            self.asked = None
        return [Note(self._set_name, "promotion " + given.verdict.value, f"epoch {asked.target.epoch}")]

    def won(self) -> Candidacy | None:
        """The promotion that the entry shows to be done, once."""
        asked = self.asked
        if asked is None:
            return None
        if self._facts.set_map == asked.target:
            self.forget()
            return asked
        if self._facts.revision > self._asked_revision and not self._is_answer_pending:
            self.asked = None
        return None
