"""The Qpid JMS client against the proxy: each test of the JUnit suite in tests/conformance/jms is one here.

All of them run in one Java process, against one cluster with two proxies and three resource sets. A suite that cannot be built
is skipped with the reason, which in CI is a failure (tests/conftest.py). A failure shows JUnit's stack trace; with
LOCKSTEP_JMS_FRAMES=1 the console log beside it has every frame that the client sent and received.
"""

import asyncio
import os
from collections import defaultdict
from pathlib import Path

import pytest

from lockstep.core.scram_credentials import ITERATIONS_MIN, SALT_BYTES, credentials_of, user_line
from lockstep.runtime.supervisor import ChildProcess
from services.proxy.worker import SESSION
from tests.conformance import jms_suite
from tests.conformance.jms_control import Wish, controlled_by
from tests.integration.cluster import SETS, Deployment, deployed

IS_TRACED = os.environ.get("LOCKSTEP_JMS_FRAMES", "") == "1"
STALL_SECONDS = 2 * SESSION.session_timeout_ms / 1000
USER, PASSWORD = "jms", "a password"
MECHANISMS = ("--mechanism", "ANONYMOUS", "--mechanism", "PLAIN", "--mechanism", "SCRAM-SHA-256")
NOT_IMPLEMENTED = {
    "TopicTest.noLocalSubscriberDoesNotHearItsOwnConnection": "the proxy does not know the filter no-local",
}
"""Of the proxy, by test: the day that one passes it has to leave this list."""
Results = dict[str, list[jms_suite.Result]]

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By test; of those that this run of pytest has collected."""
    wanted = {
        item.callspec.params["test"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_jms
    }
    directory = tmp_path_factory.mktemp("jms")
    try:
        return asyncio.run(run_suite(sorted(map(str, wanted)), directory))
    except jms_suite.CannotBuild as error:
        pytest.skip(str(error))


def parameters() -> list[object]:
    gap = {test: pytest.mark.xfail(reason=reason) for test, reason in NOT_IMPLEMENTED.items()}
    return [pytest.param(test, marks=gap.get(test, ())) for test in jms_suite.declared_tests()]


@pytest.mark.parametrize("test", parameters())
def test_jms(test: str, results: Results) -> None:
    assert test in results, "JUnit did not run it"
    failures = [f"{one.name}: {one.failure}" for one in results[test] if one.failure]
    assert not failures, "\n".join(failures)
    skipped = [one.skipped for one in results[test] if one.skipped is not None]
    if skipped:
        pytest.skip(skipped[0])


async def run_suite(tests: list[str], directory: Path) -> Results:
    """Builds the suite and runs these tests, on a cluster that lives as long."""
    class_path = await jms_suite.build()
    users = directory / "users"
    credentials = credentials_of(PASSWORD, os.urandom(SALT_BYTES), ITERATIONS_MIN)
    users.write_text(user_line(USER, credentials) + "\n")
    logins = ("--users", str(users), "--plain-without-tls", *MECHANISMS)
    async with deployed(
        directory / "cluster", coordinators=1, proxies=2, proxy_arguments=logins
    ) as deployment:
        proxies = list(deployment.cluster.proxies)
        wishes: dict[str, Wish] = {
            "kill-proxy": lambda place: deployment.cluster.proxies[proxies[int(place)]].kill(),
            "start-proxy": lambda place: deployment.cluster.start_proxy(proxies[int(place)]),
            "stall-proxy": lambda place: stall(deployment.cluster.proxies[proxies[int(place)]]),
            "kill-primaries": lambda: kill_primaries(deployment),
        }
        async with controlled_by(wishes) as control:
            addresses = ",".join(deployment.cluster.proxy_addresses)
            properties = {"proxies": addresses, "control": control, "user": USER, "password": PASSWORD}
            run = jms_suite.Run(class_path, properties, directory, is_traced=IS_TRACED)
            found = await run.results(tests)
    results: Results = defaultdict(list)
    for result in found:
        results[result.test].append(result)
    return results


async def stall(proxy: ChildProcess) -> None:
    """It hangs for so long that the brokers end its session."""
    proxy.stall()
    await asyncio.sleep(STALL_SECONDS)
    proxy.resume()


async def kill_primaries(deployment: Deployment) -> None:
    """Kills the primary of each set in turn, and has it back in sync before the next one goes."""
    for name in SETS:
        broker = await deployment.primary_of(name)
        await deployment[broker].broker.kill()
        await deployment.primary_of(name)
        await deployment.cluster.start_broker(broker)
        await deployment.until_in_sync()
