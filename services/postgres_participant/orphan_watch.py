"""Orphans: prepared transactions that nobody has ended look for their decision by themselves (DESIGN T3, T4; history 6).

Law: while one reads the log nobody votes on it, and the lock that says so is of the connection that ends it. What the log does
not answer decides nothing; nothing is presumed in another history of the cluster; nor of what was begun so long ago that its
outcome may have left the log: a database that was restored has branches again which were committed, and acknowledged.
"""

import asyncio
import logging
import time

from lockstep.core.branch_names import SET_KIND, BranchName, ParticipantName, begun_ms, branch_name
from lockstep.core.decision_log import Fate, LogView, fate
from lockstep.core.errors import LockstepError
from lockstep.core.postgres_gid import xid_of
from lockstep.runtime.decision_log import DecisionLogReader
from services.postgres_participant.database import Database, PreparedBranch
from services.postgres_participant.settings import ParticipantSettings

_log = logging.getLogger("lockstep.postgres")

ROUNDS_PER_FORGETTING = 100
"""Old records are dropped this seldom: it scans their table."""


class OrphanWatch:
    """Lives as long as the process; `run` is a task of it."""

    def __init__(self, settings: ParticipantSettings, database: Database, reader: DecisionLogReader) -> None:
        self._settings = settings
        self._database = database
        self._reader = reader
        self._rounds = 0
        self._looked_at: dict[str, int] = {}
        """By gid: the round in which it was last looked at."""
        self._given_to_operators: set[str] = set()

    async def run(self) -> None:
        """For ever; a database that does not answer is asked again in the next round."""
        rounds = 0
        while True:
            try:
                async with asyncio.timeout(self._settings.orphan_round_seconds):
                    await self.look()
                    if rounds % ROUNDS_PER_FORGETTING == 0:
                        await self._database.forget()
                rounds += 1
            except LockstepError as error:
                _log.warning("event=orphans_not_seen %s", error.message)
            except TimeoutError:
                _log.warning("event=orphans_not_seen not within %g s", self._settings.orphan_round_seconds)
            await asyncio.sleep(self._settings.orphan_every_seconds)

    async def look(self) -> None:
        """One round. Raises `InDoubt` when the database does not answer."""
        settings = self._settings
        named = [
            (branch, name)
            for branch in await self._database.prepared()
            if branch.age_seconds >= settings.orphan_age_seconds
            and (name := _name_of(branch.gid)) is not None
        ]
        gids = {branch.gid for branch, _ in named}
        self._given_to_operators &= gids
        self._looked_at = {gid: number for gid, number in self._looked_at.items() if gid in gids}
        # Those that wait, for a decision or an operator, come after those that do not: they may be many.
        named.sort(key=lambda one: self._looked_at.get(one[0].gid, 0))
        self._rounds += 1
        for branch, name in named[: settings.orphans_max]:
            # One that fails, and the round with it, is passed by in the next.
            self._looked_at[branch.gid] = self._rounds
            await self._resolve(branch, name)

    async def _resolve(self, branch: PreparedBranch, name: BranchName) -> None:
        async with self._database.held(branch.gid) as held:
            if held is None:
                return
            facts = await held.facts()
            if not facts.is_prepared:
                return
            if facts.foreign_owner:
                reason = f"the user {facts.foreign_owner} has prepared it, and only that one or a superuser may end it"
                self._give_to_operators(branch, name, "orphan_of_another_user", reason)
                return
            if facts.is_repeated or facts.is_late:
                await held.end(is_commit=False)
                return
            view = await self._reader.read(name.global_id)
            if view is None:
                return
            prepared_ms = int((time.time() - branch.age_seconds) * 1000)
            found = fate(view, name, _may_be_own, prepared_ms)
            if found is Fate.ROLL_BACK and _is_presumed(view) and not self._may_presume(branch, name):
                intent = {None: "nothing", True: "commit", False: "rollback"}[facts.is_commit]
                reason = (
                    f"if it was committed, the decision log may have it no more; its record says {intent}"
                )
                self._give_to_operators(branch, name, "orphan_too_old", reason)
            elif found in (Fate.COMMIT, Fate.ROLL_BACK):
                await held.end(is_commit=found is Fate.COMMIT)
                _log.warning("transaction=%s event=orphan_ended fate=%s", name.global_id.hex(), found.value)
            elif found is Fate.ASK_AN_OPERATOR:
                reason = "the decision log has nothing of it, and may have lost it"
                self._give_to_operators(branch, name, "orphan_of_another_history", reason)

    def _may_presume(self, branch: PreparedBranch, name: BranchName) -> bool:
        """Whether the log would still have a COMMIT of it, by any clock: where they contradict each other, not."""
        seconds = time.time() - begun_ms(name.global_id) / 1000
        age_max = self._settings.log_outcome_seconds - self._settings.clock_seconds
        return -self._settings.clock_seconds <= seconds and max(seconds, branch.age_seconds) <= age_max

    def _give_to_operators(self, branch: PreparedBranch, name: BranchName, event: str, reason: str) -> None:
        if branch.gid not in self._given_to_operators:
            self._given_to_operators.add(branch.gid)
            _log.error(
                "transaction=%s event=%s gid=%s: %s; end it by hand",
                name.global_id.hex(),
                event,
                branch.gid,
                reason,
            )


def _may_be_own(participant: ParticipantName) -> bool:
    """It may have been given another name, or another address, since."""
    return not participant.startswith(SET_KIND)


def _is_presumed(view: LogView) -> bool:
    """Whether an end that this view asks for is presumed, and written nowhere."""
    return view.decision is None and view.outcome is None


def _name_of(gid: str) -> BranchName | None:
    """None: another transaction manager's, which looks after it."""
    xid = xid_of(gid)
    try:
        return None if xid is None else branch_name(xid)
    except ValueError:
        return None
