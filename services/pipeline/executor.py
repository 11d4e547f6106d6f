"""An executor of Spark on Kubernetes: what its pod runs, with what Spark has put into its environment.

Law: it becomes the Java process, so that signals and exit statuses are those of Spark. The image is the driver's, and Spark
starts it with the one argument `executor`.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Of the backend, and the variables that Spark gives their values in."""


def command(environment: Mapping[str, str], spark_home: Path) -> list[str]:
    """The Java process. Raises `KeyError` for a variable that Spark should have set."""
    java = Path(environment["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in environment else Path("java")
    numbered = sorted(
        (int(found[1]), value)
        for name, value in environment.items()
        if (found := re.fullmatch(r"SPARK_JAVA_OPT_(\d+)", name))
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    extra = environment.get("SPARK_CLASSPATH", "")
    classes = ":".join(part for part in (extra, f"{spark_home}/jars/*") if part)
    options = [word for option, name in _OPTIONS.items() for word in (option, environment[name])]
    return [
        str(java),
        *(value for _, value in numbered),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", classes),
        BACKEND,
        *options,
    ]


def become_executor() -> NoReturn:
    """Raises `KeyError` or `OSError`; otherwise this process is Spark's from now on."""
    import pyspark

    home = Path(pyspark.__file__).parent
    # Its Python workers are this interpreter, which has the package.
    environment = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, **os.environ}
    words = command(environment, home)
    os.execvpe(words[0], words, environment)
