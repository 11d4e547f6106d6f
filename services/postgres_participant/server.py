"""A participant process for PostgreSQL: its service and its look for orphans.

Law: it keeps nothing: what is prepared is in the database, and what was decided is in the log. Two of them may serve one
database.
"""

import asyncio
import logging
import signal

from lockstep.core.errors import LockstepError
from lockstep.runtime.channels import make_server
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.health import Health
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.process import bind, spawn
from lockstep.runtime.reflection import add_services
from services.postgres_participant.database import Database
from services.postgres_participant.orphan_watch import OrphanWatch
from services.postgres_participant.participant_service import ParticipantService
from services.postgres_participant.settings import ParticipantSettings

_log = logging.getLogger("lockstep.postgres")

ETCD_TIMEOUT_SECONDS = 1.0
SERVER_GRACE_SECONDS = 0.3
"""For calls to end by themselves when the process stops."""


async def serve(settings: ParticipantSettings) -> int:
    """Runs a participant until SIGTERM or SIGINT; returns its exit status."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    database = Database(
        settings.dsn, settings.connections_max, settings.statement_seconds, settings.outcome_seconds
    )
    async with EtcdClient(settings.etcd, ETCD_TIMEOUT_SECONDS) as etcd:
        watch = OrphanWatch(settings, database, DecisionLogReader(etcd, settings.cluster))
        server = make_server()
        service = ParticipantService(settings.name, database)
        add_services(server, (service.handlers(),), Health())
        port = bind(server, settings.listen)
        await server.start()
        tasks = [spawn(watch.run(), "orphans"), spawn(_check(database), "check of the database")]
        _log.info(
            "event=ready name=%s address=%s:%d", settings.name, settings.listen.rpartition(":")[0], port
        )
        with watching("participant"):
            await stopping.wait()
        await server.stop(SERVER_GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await database.close()
    _log.info("event=stopped")
    return 0


async def _check(database: Database) -> None:
    """Says once what an operator has to change."""
    try:
        if await database.prepared_max() == 0:
            _log.error("event=cannot_prepare max_prepared_transactions=0: set it, and restart PostgreSQL")
    except LockstepError as error:
        _log.warning("event=database_unreachable %s", error.message)
