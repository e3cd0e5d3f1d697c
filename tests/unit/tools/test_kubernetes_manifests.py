"""deploy/kubernetes: what its files say of each other agrees, and the schemas of Kubernetes accept them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config.load import load_config
from penstock.config.model import JobConfig
from tests.support.tools.pages import blocks
from tests.support.tools.places import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
OLDEST = "1.28.0"
"""The oldest version of Kubernetes that the manifests are compared with, beside the newest that the validator knows."""
POD = {"POD_NAME": "shop-driver-0", "POD_NAMESPACE": "streams", "POD_IP": "10.0.0.7"}
Object = dict[str, Any]


def documents(file: Path) -> Iterator[Object]:
    yield from yaml.safe_load_all(file.read_text(encoding="utf-8"))


APPLIED = [document for file in sorted(FOLDER.glob("*.yaml")) for document in documents(file)]
SECRETS = list(documents(FOLDER / "secrets.yaml.example"))


def one(kind: str, name: str | None = None) -> Object:
    """The only object of this kind, or of this kind and name."""
    (found,) = [o for o in APPLIED + SECRETS if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found


CONFIG: dict[str, str] = one("ConfigMap")["data"]
TEMPLATE: Object = yaml.safe_load(CONFIG["executor.yaml"])
DRIVER: Object = one("StatefulSet")["spec"]["template"]
PODS = pytest.mark.parametrize("pod", [DRIVER, TEMPLATE], ids=["driver", "executor"])


def container(pod: Object) -> Object:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def selects(selector: Mapping[str, str], pod: Object) -> bool:
    return bool(selector.items() <= pod["metadata"]["labels"].items())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    """The configuration as the driver in its pod reads it."""
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "job.yaml"
    file.write_text(CONFIG["job.yaml"], encoding="utf-8")
    return load_config(file, default_job_name="shop")


@pytest.mark.parametrize("version", [OLDEST, "newest"])
def test_the_schemas_of_kubernetes_accept_every_object(version: str) -> None:
    validator: Any = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    version = validator.latest_version() if version == "newest" else version
    for each in [*APPLIED, *SECRETS, TEMPLATE]:
        validator.validate(each, version, strict=True)


@pytest.mark.parametrize(
    ("place", "value"),
    [("replicas", "one"), ("replicaz", 1), ("podManagementPolicy", ["OrderedReady"])],
)
def test_the_schemas_refuse_a_mistake(place: str, value: object) -> None:
    validator: Any = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    wrong = one("StatefulSet")
    wrong = {**wrong, "spec": {**wrong["spec"], place: value}}
    for version in (OLDEST, validator.latest_version()):
        with pytest.raises(validator.ValidationError, match=place):
            validator.validate(wrong, version, strict=True)


def test_kubectl_applies_every_manifest_but_the_secrets_and_in_any_namespace() -> None:
    names = [(o["kind"], o["metadata"]["name"]) for o in APPLIED]
    assert len(set(names)) == len(names)
    assert {kind for kind, _ in names} == {
        "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount",
        "StatefulSet",
    }  # fmt: skip
    assert not any("namespace" in o["metadata"] for o in [*APPLIED, *SECRETS, TEMPLATE])
    assert all(o["metadata"]["labels"]["app.kubernetes.io/part-of"] == "penstock" for o in [*APPLIED, *SECRETS])


def test_each_selector_finds_the_pods_that_it_means() -> None:
    stateful, service = one("StatefulSet"), one("Service")
    assert stateful["spec"]["replicas"] == 1
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    for selector in (stateful["spec"]["selector"]["matchLabels"], service["spec"]["selector"]):
        assert selects(selector, DRIVER)
        assert not selects(selector, TEMPLATE)
    budget = one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert selects(budget, TEMPLATE)
    assert not selects(budget, DRIVER)
    policy = one("NetworkPolicy")["spec"]
    own = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert own == policy["podSelector"]["matchLabels"]
    assert selects(own, TEMPLATE)
    assert selects(own, DRIVER)


def test_the_ports_of_service_container_and_configuration_agree(job: JobConfig) -> None:
    driver = container(DRIVER)
    ports = {port["name"]: port["containerPort"] for port in driver["ports"]}
    service = one("Service")["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == ports
    assert all(port["targetPort"] == port["name"] for port in service["ports"])
    assert ports == {
        "driver": int(job.spark["spark.driver.port"]),
        "blocks": int(job.spark["spark.driver.blockManager.port"]),
        "metrics": job.metrics.prometheus_port,
    }
    probed = {driver[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "readiness", "liveness")}
    assert probed == {"metrics"} == {port["port"] for port in one("NetworkPolicy")["spec"]["ingress"][1]["ports"]}
    assert (job.metrics.prometheus_host, job.metrics.prometheus_token) == ("0.0.0.0", None), "the kubelet has no token"


def test_the_configuration_names_what_the_manifests_have(job: JobConfig) -> None:
    spark, driver = job.spark, container(DRIVER)
    assert set(re.findall(r"\$\{env:(\w+)\}", CONFIG["job.yaml"])) == {variable["name"] for variable in driver["env"]}
    assert spark["spark.driver.host"] == one("Service")["metadata"]["name"]
    assert one("Service")["spec"]["publishNotReadyAddresses"], "executors start before the driver is ready"
    assert spark["spark.driver.bindAddress"] == POD["POD_IP"], "Spark 4.3 gives this address to executors"
    assert spark["spark.kubernetes.driver.pod.name"] == f"{one('StatefulSet')['metadata']['name']}-0"
    assert spark["spark.kubernetes.container.image"] == driver["image"] == container(TEMPLATE)["image"]
    assert not re.search(r":latest$|^[^:]+$", driver["image"].rpartition("/")[2])
    assert one("PodDisruptionBudget")["spec"]["minAvailable"] == int(spark["spark.executor.instances"]) - 1
    grace = TEMPLATE["spec"]["terminationGracePeriodSeconds"]
    assert spark["spark.kubernetes.executor.terminationGracePeriodSeconds"] == f"{grace}s"
    mounted = {mount["mountPath"] for mount in driver["volumeMounts"]}
    assert {
        spark["spark.kubernetes.executor.podTemplateFile"],
        driver["args"][driver["args"].index("--config") + 1],
    } <= mounted
    assert {mount["subPath"] for mount in driver["volumeMounts"] if "subPath" in mount} == set(CONFIG)
    assert job.job.root.startswith("s3://")
    assert DRIVER["spec"]["terminationGracePeriodSeconds"] >= 120


def test_accounts_secrets_and_volumes_exist() -> None:
    assert one("ServiceAccount", DRIVER["spec"]["serviceAccountName"])
    assert one("ServiceAccount", TEMPLATE["spec"]["serviceAccountName"])
    binding = one("RoleBinding")
    assert [subject["name"] for subject in binding["subjects"]] == [DRIVER["spec"]["serviceAccountName"]]
    assert binding["roleRef"]["name"] == one("Role")["metadata"]["name"]
    assert DRIVER["spec"]["automountServiceAccountToken"]
    assert not TEMPLATE["spec"]["automountServiceAccountToken"]
    for pod in (DRIVER, TEMPLATE):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container(pod)["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert one("ConfigMap", volume["configMap"]["name"])
            if "secret" in volume:
                assert one("Secret", volume["secret"]["secretName"])
        assert [one("Secret", each["secretRef"]["name"]) for each in container(pod)["envFrom"]]
    assert {value for secret in SECRETS for value in secret["stringData"].values()} == {"REPLACE"}


@PODS
def test_pods_are_not_root_and_write_only_to_their_volumes(pod: Object) -> None:
    user = int(re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.MULTILINE)[0])
    context = pod["spec"]["securityContext"]
    assert context == {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    empty = {volume["name"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
    writable = {mount["mountPath"] for mount in container(pod)["volumeMounts"] if mount["name"] in empty}
    (home,) = re.findall(r"PENSTOCK_HOME=(\S+)", DOCKERFILE)
    assert writable == {home, "/tmp"}
    assert f"WORKDIR {home}\n" in DOCKERFILE


def test_the_image_is_pinned_and_installs_what_is_locked() -> None:
    assert re.search(r"^ARG BASE=python:3\.11\.\d+-slim-bookworm$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert DOCKERFILE.count("--require-hashes") == 2
    own, dev = (locked(file) for file in (FOLDER / "requirements.lock", ROOT / "requirements" / "dev.lock"))
    assert {"pyspark", "pyarrow", "rocksdict", "obstore", "confluent-kafka"} <= own.keys()
    assert {name: pin for name, pin in own.items() if dev.get(name) != pin} == {}, "make both from the same versions"


def locked(file: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → version and hashes of a lock's packages."""
    found = {}
    for part in re.split(r"^(?=[\w.-]+==)", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, version = re.findall(r"^([\w.-]+)==([^\s;]+)", part)[0]
        found[name] = version, frozenset(re.findall(r"--hash=(\S+)", part))
        assert found[name][1], f"{name} has no hash"
    return found


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with programs that print their arguments, one a line, behind their names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("tini", "java", "penstock"):
        script = folder / name
        last = 'shift\nexec "$@"' if name == "tini" else f"printf '{name}:%s\\n' \"$@\"; printf 'umask:%s\\n' $(umask)"
        script.write_text(f"#!/bin/sh\n{last}\n", encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


def enter(programs: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "SPARK_HOME": "/spark", **variables}
    command = ["sh", "-c", 'umask 022; exec "$@"', "sh", "bash", str(FOLDER / "entrypoint.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_entry_point_runs_commands_of_penstock(programs: Path) -> None:
    done = enter(programs, "run", "shop job:app")
    assert done.stdout.splitlines() == ["penstock:run", "penstock:shop job:app", "umask:0022"], done.stderr


EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "4",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "shop-exec-4",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
}


def test_the_entry_point_starts_an_executor_as_its_environment_says(programs: Path) -> None:
    options = {"SPARK_JAVA_OPT_10": "-Dten=10", "SPARK_JAVA_OPT_2": "-Dtwo=a b", "SPARK_JAVA_OPT_0": "-XX:+Zero"}
    done = enter(programs, "executor", **EXECUTOR, **options)
    assert done.stdout.splitlines() == [
        *(f"java:{each}" for each in ("-XX:+Zero", "-Dtwo=a b", "-Dten=10", "-Xms1024m", "-Xmx1024m")),
        *("java:-cp", "java:/opt/spark/conf:/spark/jars/*"),
        "java:org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("java:--driver-url", f"java:{EXECUTOR['SPARK_DRIVER_URL']}"),
        *("java:--executor-id", "java:4", "java:--cores", "java:2", "java:--app-id", "java:spark-1"),
        *(
            "java:--hostname",
            "java:10.0.0.8",
            "java:--resourceProfileId",
            "java:0",
            "java:--podName",
            "java:shop-exec-4",
        ),
        "umask:0077",
    ], done.stderr
    assert (
        "java:/opt/spark/conf:/more:/spark/jars/*"
        in enter(programs, "executor", **EXECUTOR, SPARK_CLASSPATH="/more").stdout
    )


def test_an_executor_without_a_setting_does_not_start(programs: Path) -> None:
    done = enter(programs, "executor", **{key: text for key, text in EXECUTOR.items() if key != "SPARK_EXECUTOR_ID"})
    assert done.returncode != 0
    assert "SPARK_EXECUTOR_ID" in done.stderr
    assert done.stdout == ""


def test_the_commands_of_the_page_name_what_the_manifests_have() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    lines = [line.split() for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("kubectl")]
    assert len(lines) > 5
    driver = one("StatefulSet")["metadata"]["name"]
    for words in lines:
        for before, word in pairwise(words):
            if before == "-f" and word.endswith((".yaml", "/")):
                assert word == "secrets.yaml" or (ROOT / word).exists()
            elif before in ("-f", "exec"):
                assert word == f"{driver}-0"
            elif before == "statefulset":
                assert word == driver
            elif before == "-l":
                key, value = word.split("=")
                assert DRIVER["metadata"]["labels"][key] == value
            elif before == "--config":
                assert word in {mount["mountPath"] for mount in container(DRIVER)["volumeMounts"]}
