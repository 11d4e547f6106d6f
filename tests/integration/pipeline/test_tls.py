"""Brokers that are reached by TLS: what stands before them wants a certificate of whoever comes."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockstep.client.events import EventsClient
from lockstep.core.errors import ErrorCode, Rejected
from services.pipeline.tls_options import TlsOptions
from tests.integration.pipeline.history import History
from tests.integration.pipeline.rows import event_rows
from tests.integration.tls_link import tls_links
from tests.unit.services.proxy.security.certificates import Certificates

REFUSED_SECONDS = 1.0


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    for authority in ("ours", "theirs"):
        made.authority(authority)
    made.signed("broker", "/CN=broker", "ours", "IP:127.0.0.1")
    made.signed("spark", "/CN=spark", "ours")
    return made


@pytest.fixture
def options(made: Certificates) -> TlsOptions:
    return TlsOptions(made.certificate("ours"), made.certificate("spark"), made.key("spark"))


@pytest.fixture
def context(made: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made.certificate("ours"))
    context.load_cert_chain(made.certificate("broker"), made.key("broker"))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_the_source_reads_the_log_by_tls(
    spark: SparkSession, history: History, options: TlsOptions, context: ssl.SSLContext
) -> None:
    """Plans name brokers by addresses that speak no TLS: the given ones are asked all the same."""
    async with tls_links(history.addresses, context) as addresses:
        given = {"brokers": ",".join(addresses), "group": "tls", "start": "earliest", **options.plain()}

        def read() -> list[dict[str, Any]]:
            return event_rows(spark.read.format("lockstep").options(**given).load())

        assert await asyncio.to_thread(read) == history.rows()


async def test_who_is_not_trusted_or_trusts_another_gets_nothing(
    history: History, made: Certificates, options: TlsOptions, context: ssl.SSLContext
) -> None:
    async with tls_links(history.addresses, context) as addresses:
        for refused in (
            TlsOptions(made.certificate("ours")),
            TlsOptions(made.certificate("theirs"), options.certificate_file, options.key_file),
            TlsOptions(),
        ):
            with (
                EventsClient(addresses, tls=refused.load(), patience_seconds=REFUSED_SECONDS) as client,
                pytest.raises(Rejected) as error,
            ):
                await asyncio.to_thread(client.subscriptions)
            assert error.value.code is ErrorCode.UNAVAILABLE
        with EventsClient(addresses, tls=options.load()) as client:
            assert await asyncio.to_thread(client.subscriptions)
