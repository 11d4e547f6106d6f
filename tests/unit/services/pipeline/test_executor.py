"""What an executor's pod runs, from what Spark puts into its environment."""

from pathlib import Path

import pytest

from services.pipeline.executor import BACKEND, command

GIVEN = {
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-3",
    "SPARK_EXECUTOR_MEMORY": "2048m",
}
HOME = Path("/opt/spark")


def test_java_gets_its_options_in_the_order_of_their_numbers() -> None:
    numbered = {f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number}" for number in (10, 2, 0)}
    words = command(GIVEN | numbered, HOME)
    assert words[:6] == ["java", "-Dnumber=0", "-Dnumber=2", "-Dnumber=10", "-Xms2048m", "-Xmx2048m"]


def test_the_backend_is_told_who_it_is_and_whom_it_serves() -> None:
    words = command(GIVEN | {"JAVA_HOME": "/jdk", "SPARK_CLASSPATH": "/more.jar"}, HOME)
    assert words[0] == "/jdk/bin/java"
    assert words[words.index("-cp") + 1] == "/more.jar:/opt/spark/jars/*"
    rest = words[words.index(BACKEND) + 1 :]
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        "--driver-url": "spark://driver:7078",
        "--executor-id": "3",
        "--cores": "1",
        "--app-id": "app",
        "--hostname": "10.0.0.9",
        "--resourceProfileId": "0",
        "--podName": "exec-3",
    }


def test_what_spark_has_not_said_is_an_error() -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command({name: value for name, value in GIVEN.items() if name != "SPARK_DRIVER_URL"}, HOME)
