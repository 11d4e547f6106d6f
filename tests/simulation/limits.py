"""Limits of the cores in a world: the real defaults, or so small that every limit is reached in a minute."""

from dataclasses import replace
from random import Random

from lockstep.core.pieces import PIECE_COST
from services.backup.core.settings import BackupSettings
from services.broker.core.settings import ReplicaSettings
from services.primary.core.settings import PrimarySettings
from services.store.core.limits import KIB, StoreLimits
from tests.simulation.options import Options

NAMES_CHECK_MS = 2000
"""In every world: what a dead primary left in the directory is put right before the world has come to rest."""


def replica_settings(options: Options, random: Random) -> ReplicaSettings:
    settings = _replica_settings(options, random)
    if options.tiny_steps:
        settings = _with_tiny_steps(settings, Random(f"tiny limits {options.seed}"))
    if options.coordination is not None:
        primary = replace(
            settings.primary,
            branch_timeout_ms=options.coordination.branch_timeout_ms,
            decision_ask_ms=options.coordination.decision_ask_ms,
        )
        settings = replace(settings, primary=primary)
    if options.command_bytes_max:
        primary = replace(
            settings.primary,
            command_bytes_max=options.command_bytes_max,
            frame_bytes_max=options.command_bytes_max // 4,
        )
        settings = replace(settings, primary=primary)
    if options.command_messages_max:
        primary = replace(settings.primary, command_messages_max=options.command_messages_max)
        settings = replace(settings, primary=primary)
    if options.outcome_retention_ms:
        primary = replace(settings.primary, outcome_retention_ms=options.outcome_retention_ms)
        settings = replace(settings, primary=primary)
    if options.outcomes_max:
        settings = replace(settings, primary=replace(settings.primary, outcomes_max=options.outcomes_max))
    if not options.resident_bytes_max:
        return settings
    # Newcomers get the bodies, too, and not the frames.
    retained = min(settings.primary.retained_bytes_max, options.resident_bytes_max)
    primary = replace(
        settings.primary,
        reading_bytes_max=options.body_bytes_max * 2,
        reading_messages_max=3,
        retained_bytes_max=retained,
    )
    backup = replace(
        settings.backup, resident_body_bytes_max=options.resident_bytes_max, retained_bytes_max=retained
    )
    return replace(settings, primary=primary, backup=backup)


def _with_tiny_steps(settings: ReplicaSettings, random: Random) -> ReplicaSettings:
    """The same with works that are cut wherever they can be."""
    primary = replace(
        settings.primary,
        time_outs_max=random.choice((1, 3)),
        session_ends_max=1,
        given_back_max=random.choice((1, 3)),
        outcome_sweep_max=random.choice((1, 3)),
        delivery_turn_max=random.choice((1, 10)),
        deliveries_max=random.choice((1, 10)),
        snapshot_chunk_bytes=random.choice((1, 200)),
        expiry_batch_max=1,
        names_batch_max=1,
    )
    return replace(settings, primary=primary)


def _replica_settings(options: Options, random: Random) -> ReplicaSettings:
    # In nearly every world what goes in pieces is left in the middle again and again.
    drawn = Random(f"pieces {options.seed}").choice((1, 10, 100, PIECE_COST))
    piece_cost = options.piece_cost or (1 if options.tiny_steps else drawn)
    if not options.small_limits:
        return ReplicaSettings(
            PrimarySettings(names_check_ms=NAMES_CHECK_MS, piece_cost=piece_cost),
            BackupSettings(piece_cost=piece_cost),
        )
    retained = random.choice((1, 8, 64)) * KIB
    primary = PrimarySettings(
        transactions_open_max=random.choice((20, 10_000)),
        frame_bytes_max=random.choice((300, 4 * KIB, 1024 * KIB)),
        uncommitted_bytes_max=random.choice((20, 2000)) * KIB,
        retained_bytes_max=retained,
        guard_lag=random.choice((1, 20, 2000)),
        delivery_batch_max=random.choice((1, 5, 256)),
        browse_messages_max=random.choice((3, 1000)),
        snapshot_chunk_bytes=random.choice((200, 4 * KIB)),
        expiry_batch_max=random.choice((1, 1000)),
        names_check_ms=NAMES_CHECK_MS,
        names_batch_max=random.choice((1, 1000)),
        gathering_ms_max=random.choice((0, 10, 200)),
        session_ends_max=Random(f"ends {options.seed}").choice((1, 64)),
        given_back_max=Random(f"given back {options.seed}").choice((1, 3, 2000)),
        piece_cost=piece_cost,
    )
    return ReplicaSettings(primary, BackupSettings(retained_bytes_max=retained, piece_cost=piece_cost))


def store_limits(options: Options, random: Random) -> StoreLimits:
    """Segments are small in every world: a virtual disk keeps them in memory."""
    limits = _store_limits(options, random)
    if options.tiny_steps:
        tiny = Random(f"tiny groups {options.seed}")
        limits = replace(
            limits,
            group_frames_max=tiny.choice((1, 2, 5)),
            piece_bytes=700,
            chunk_bytes=tiny.choice((1, KIB)),
            contents_max=tiny.choice((1, 3)),
            consolidated_bytes=tiny.choice((1, KIB)),
            batch_items_max=tiny.choice((1, 3)),
        )
    if not options.has_subscriber:
        return limits
    segment = min(limits.segment_bytes, 8 * KIB)
    owed = Random(f"owed {options.seed}").choice((16 * segment, limits.owed_bytes_max, limits.owed_bytes_max))
    return replace(
        limits,
        segment_bytes=segment,
        unconsolidated_bytes=segment // 8,
        unconsolidated_quiet_bytes=segment // 32,
        owed_bytes_max=owed,
    )


def _store_limits(options: Options, random: Random) -> StoreLimits:
    segment = random.choice((16, 64, 256)) * KIB if options.small_limits else 1024 * KIB
    limits = StoreLimits(segment_bytes=segment, reserve_bytes=1024 * KIB)
    if not options.small_limits:
        return limits
    return replace(
        limits,
        page_bytes=512,
        group_bytes_max=random.choice((2, 16, 4096)) * KIB,
        group_frames_max=segment // (8 * KIB),
        piece_bytes=Random(f"written at once {options.seed}").choice((700, 4 * KIB, 8192 * KIB)),
        chunk_bytes=random.choice((1, 16, 1024)) * KIB,
        contents_bytes=Random(f"contents at once {options.seed}").choice((1, 4 * KIB, 4096 * KIB)),
        consolidated_bytes=random.choice((4, 64)) * KIB,
        batch_items_max=random.choice((5, 100, 2000)),
        unconsolidated_bytes=segment // 8,
        unconsolidated_quiet_bytes=segment // 32,
        unconsolidated_ticks=3,
        dense_bytes=2 * KIB,
        dense_ticks=2,
        unflushed_items_max=200,
        unflushed_quiet_items_max=20,
    )
