"""A standalone cluster of Spark: a master and a worker, as they come with the pip package."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from lockstep.runtime.ports import choose_ports
from tests.integration.pipeline import driver

START_SECONDS = 120.0
"""Two JVMs, on a machine that may be busy."""
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"
ENVIRONMENT = {
    **driver.ENVIRONMENT,
    # Web pages and block managers, too.
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
}
"""Of all processes of the cluster, and of its drivers. Executors find the package where this process does."""


@contextlib.contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """The master's URL; its worker is there inside the block."""
    (port,) = choose_ports(1)
    url = f"spark://127.0.0.1:{port}"
    anywhere = ("--host", "127.0.0.1", "--webui-port", "0")
    with (
        _running(directory / "master.log", "master.Master", *anywhere, "--port", str(port)) as master,
        _running(
            *(directory / "worker.log", "worker.Worker", *anywhere, "--port", "0"),
            *("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"), url),
        ),
    ):
        _until_said(master, "Registering worker")
        yield url


@contextlib.contextmanager
def _running(log: Path, name: str, *arguments: str) -> Iterator[Path]:
    with log.open("wb") as output:
        # The script becomes the JVM.
        process = subprocess.Popen(
            (_CLASS, f"{_DEPLOY}.{name}", *arguments),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            cwd=log.parent,
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def _until_said(log: Path, words: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while words not in (said := log.read_text()):
        assert time.monotonic() < deadline, f"not within {START_SECONDS:g} s: {words}\n{said[-3000:]}"
        time.sleep(0.1)
