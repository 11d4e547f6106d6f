"""The pipeline on Kubernetes: a real driver, with the settings of the manifests, has an API make an executor; the pod that it
asks for is one that may run, and its program does the driver's work."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate

from tests.integration.pipeline import driver
from tests.integration.pipeline.kubernetes_api import Pod, serving
from tests.unit.deploy.kubernetes import KUBERNETES, container, environment, named, of_kind, selects
from tests.unit.deploy.test_kubernetes_manifests import VERSION, check_rights

OVERLAY = "with-pipeline"
WAIT_SECONDS = 180.0
"""Two JVMs start, on a machine that may be busy."""
DRIVER = """
import sys
from services.pipeline.session import make_session

spark = make_session(sys.argv[1])
print("sum", spark.sparkContext.parallelize(range(100), 2).map(lambda one: one + 1).sum(), flush=True)
spark.stop()
"""


def driver_environment(scratch: Path) -> dict[str, str]:
    """Of the driver's container, but for what two machines and the kubelet would do: addresses, ports, mounted files."""
    given = environment(OVERLAY, container(OVERLAY, "pipeline"), pod_name="lockstep-pipeline-0")
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.port": "0",
        "spark.blockManager.port": "0",
        "spark.executor.instances": "1",
        "spark.local.dir": str(scratch),
        "spark.kubernetes.executor.podTemplateFile": str(KUBERNETES / "components/pipeline/executor.yaml"),
    }
    words = " ".join(f"--conf {name}={value}" for name, value in here.items())
    assert given["PYSPARK_SUBMIT_ARGS"].endswith(" pyspark-shell")
    return {
        **driver.ENVIRONMENT,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(KUBERNETES / "components/pipeline"),
        "PYSPARK_SUBMIT_ARGS": given["PYSPARK_SUBMIT_ARGS"].replace(
            "pyspark-shell", f"{words} pyspark-shell"
        ),
    }


def executor_environment(pod: Pod, scratch: Path) -> dict[str, str]:
    """As the kubelet would make it."""
    fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
    found = {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in pod["spec"]["containers"][0]["env"]
        if "value" in one or one.get("valueFrom")
    }
    return {**driver.ENVIRONMENT, **found, "SPARK_LOCAL_DIRS": str(scratch)}


def test_a_driver_has_its_executor_made_and_work_done_there(tmp_path: Path) -> None:
    running: list[subprocess.Popen[Any]] = []
    logs = {name: tmp_path / f"{name}.log" for name in ("driver", "executor")}
    with serving() as api, logs["driver"].open("wb") as said, logs["executor"].open("wb") as executed:
        try:
            running_driver = subprocess.Popen(
                [sys.executable, "-c", DRIVER, f"k8s://{api.url}"],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=driver_environment(tmp_path),
            )
            running.append(running_driver)
            pod = api.pods.get(timeout=WAIT_SECONDS)
            check(pod)
            # The image's entry point, with the arguments that Spark gives it.
            program = [sys.executable, "-m", "services.pipeline", *pod["spec"]["containers"][0]["args"]]
            running.append(
                subprocess.Popen(
                    program,
                    stdout=executed,
                    stderr=subprocess.STDOUT,
                    env=executor_environment(pod, tmp_path),
                )
            )
            status = running_driver.wait(WAIT_SECONDS)
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(30)
    assert status == 0 and "sum 5050\n" in logs["driver"].read_text(), (
        logs["driver"].read_text()[-2000:] + logs["executor"].read_text()[-2000:]
    )
    (role,) = of_kind(OVERLAY, "Role")
    allowed = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert {("pods", "create"), ("pods", "watch")} <= api.asked <= allowed


def check(pod: Pod) -> None:
    """What Spark makes of the template is as everything else that runs here."""
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, VERSION, strict=True)
    (one,) = pod["spec"]["containers"]
    assert one["image"] == container(OVERLAY, "pipeline")["image"]
    check_rights(pod["spec"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    labels = pod["metadata"]["labels"]
    for name in ("lockstep-nobody", "lockstep-pipeline"):
        assert selects(named(OVERLAY, "NetworkPolicy", name)["spec"]["podSelector"], labels)
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {named(OVERLAY, "PersistentVolumeClaim", "lockstep-tables")["metadata"]["name"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
    of_driver = {
        mount["name"]: mount["mountPath"] for mount in container(OVERLAY, "pipeline")["volumeMounts"]
    }
    assert mounts["tables"] == of_driver["tables"], "paths of tables are the driver's"
