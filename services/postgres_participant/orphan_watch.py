"""Orphans: prepared transactions that nobody has ended look for their decision by themselves (DESIGN T3, T4; history 6).

Law: while one reads the log nobody votes on it, and the lock that says so is of the connection that ends it. What the log does
not answer decides nothing; and nothing is presumed in another history of the cluster.
"""

import asyncio
import logging

from lockstep.core.branch_names import BranchName, branch_name
from lockstep.core.decision_log import Fate, fate
from lockstep.core.errors import LockstepError
from lockstep.core.postgres_gid import xid_of
from lockstep.runtime.decision_log import DecisionLogReader
from services.postgres_participant.database import Database
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
        self._given_to_operators: set[str] = set()

    async def run(self) -> None:
        """For ever; a database that does not answer is asked again in the next round."""
        rounds = 0
        while True:
            try:
                async with asyncio.timeout(self._settings.orphan_round_seconds):
                    await self.look()
                    if rounds % ROUNDS_PER_FORGETTING == 0:
                        await self._database.forget(self._settings.outcome_seconds)
                rounds += 1
            except LockstepError as error:
                _log.warning("event=orphans_not_seen %s", error.message)
            except TimeoutError:
                _log.warning("event=orphans_not_seen not within %g s", self._settings.orphan_round_seconds)
            await asyncio.sleep(self._settings.orphan_every_seconds)

    async def look(self) -> None:
        """One round. Raises `InDoubt` when the database does not answer."""
        settings = self._settings
        old = [
            branch.gid
            for branch in await self._database.prepared()
            if branch.age_seconds >= settings.orphan_age_seconds
        ]
        self._given_to_operators &= set(old)
        for gid in old[: settings.orphans_max]:
            name = _name_of(gid)
            if name is not None:
                await self._resolve(gid, name)

    async def _resolve(self, gid: str, name: BranchName) -> None:
        async with self._database.held(gid) as held:
            if held is None or not (await held.facts()).is_prepared:
                return
            view = await self._reader.read(name.global_id)
            if view is None:
                return
            found = fate(view, name.generation)
            if found in (Fate.COMMIT, Fate.ROLL_BACK):
                await held.end(is_commit=found is Fate.COMMIT)
                _log.warning("transaction=%s event=orphan_ended fate=%s", name.global_id.hex(), found.value)
            elif found is Fate.ASK_AN_OPERATOR and gid not in self._given_to_operators:
                self._given_to_operators.add(gid)
                _log.error(
                    "transaction=%s event=orphan_of_another_history gid=%s: the decision log has nothing of it, and may have "
                    "lost it; end it by hand",
                    name.global_id.hex(),
                    gid,
                )


def _name_of(gid: str) -> BranchName | None:
    """None: another transaction manager's, which looks after it."""
    xid = xid_of(gid)
    try:
        return None if xid is None else branch_name(xid)
    except ValueError:
        return None
