"""deploy/kubernetes: what its files say of each other agrees, and the schemas of Kubernetes accept them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
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
ENTRY_POINT = ROOT / "penstock" / "cli" / "project" / "entrypoint.sh"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
OLDEST = "1.28.0"
"""The oldest version of Kubernetes that the manifests are compared with, beside the newest that the validator knows."""
POD = {"POD_NAME": "shop-driver-0", "POD_NAMESPACE": "streams", "POD_IP": "10.0.0.7"}
Object = dict[str, Any]


def documents(file: Path) -> Iterator[Object]:
    yield from yaml.safe_load_all(file.read_text(encoding="utf-8"))


APPLIED = [document for file in sorted(FOLDER.glob("*.yaml")) for document in documents(file)]
CLUSTER = [document for file in sorted((FOLDER / "cluster").glob("*.yaml")) for document in documents(file)]
"""The files for an administrator."""
SECRETS = list(documents(FOLDER / "secrets.yaml.example"))


def one(kind: str, name: str | None = None) -> Object:
    """The only object of this kind, or of this kind and name."""
    (found,) = [o for o in APPLIED + CLUSTER + SECRETS if o["kind"] == kind and name in (None, o["metadata"]["name"])]
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
    newer = "ValidatingAdmission"  # they are there from 1.30 on
    for each in [*APPLIED, *SECRETS, TEMPLATE, *CLUSTER]:
        if version != OLDEST or not each["kind"].startswith(newer):
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
    policy = one("NetworkPolicy", "shop")["spec"]
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
    assert (
        probed == {"metrics"} == {port["port"] for port in one("NetworkPolicy", "shop")["spec"]["ingress"][1]["ports"]}
    )
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


PORTS = {7078: "driver", 7079: "blocks", 9404: "metrics"}
OWN = ("streams", DRIVER["metadata"]["labels"])
EXECUTOR_POD = ("streams", TEMPLATE["metadata"]["labels"])
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
METADATA = "169.254.169.254"


def admits(rules: list[Object], way: str, peer: tuple[str, Mapping[str, str]] | str, port: int, protocol: str) -> bool:
    """True if a rule of the namespace `streams` lets through a connection with a pod (its namespace and labels), or
    with an address outside the cluster."""

    def is_peer(each: Object) -> bool:
        if isinstance(peer, str):
            block = each.get("ipBlock")
            address = ip_address(peer)
            return (
                block is not None
                and address in ip_network(block["cidr"])
                and not any(address in ip_network(left_out) for left_out in block["except"])
            )
        namespace, labels = peer
        if "ipBlock" in each:
            return False
        wanted = each.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": "streams"}})
        is_there = wanted.get("matchLabels", {}).items() <= {"kubernetes.io/metadata.name": namespace}.items()
        return bool(is_there and each.get("podSelector", {}).get("matchLabels", {}).items() <= labels.items())

    def is_port(each: Object) -> bool:
        return each["protocol"] == protocol and each["port"] in (port, PORTS.get(port))

    return any(
        any(map(is_peer, rule[way])) and ("ports" not in rule or any(map(is_port, rule["ports"]))) for rule in rules
    )


def rules(pod: Object, way: str) -> list[Object]:
    """The rules of all policies for a pod. Every way has a policy: without one, everything is let through."""
    mine = [
        each["spec"]
        for each in APPLIED
        if each["kind"] == "NetworkPolicy" and selects(each["spec"]["podSelector"]["matchLabels"], pod)
    ]
    mine = [each for each in mine if way in each["policyTypes"]]
    assert mine
    return [rule for each in mine for rule in each.get(way.lower(), [])]


@PODS
def test_no_pod_of_another_namespace_or_name_reaches_the_job(pod: Object) -> None:
    incoming = rules(pod, "Ingress")
    for port in PORTS:
        for own in (OWN, EXECUTOR_POD):
            assert admits(incoming, "from", own, port, "TCP")
        for peer in (("other", PROMETHEUS), ("streams", PROMETHEUS), ("other", OWN[1]), ("monitoring", {"app": "x"})):
            assert not admits(incoming, "from", peer, port, "TCP"), (peer, port)
        assert admits(incoming, "from", ("monitoring", PROMETHEUS), port, "TCP") == (PORTS[port] == "metrics")


@PODS
def test_a_pod_that_is_taken_over_reaches_little(pod: Object) -> None:
    outgoing = rules(pod, "Egress")
    resolver = {"k8s-app": "kube-dns"}
    assert admits(outgoing, "to", OWN, 7078, "TCP")
    assert admits(outgoing, "to", EXECUTOR_POD, 40_000, "TCP")
    assert admits(outgoing, "to", ("kube-system", resolver), 53, "UDP")
    assert admits(outgoing, "to", "52.216.0.1", 443, "TCP")
    assert admits(outgoing, "to", "10.0.0.1", 6443, "TCP") == (pod is DRIVER), "executors have no account"
    for peer, port, protocol in (
        (("other", {}), 8080, "TCP"), (("other", resolver), 53, "UDP"), (("kube-system", {"k8s-app": "x"}), 53, "UDP"),
        ("8.8.8.8", 53, "UDP"), ("8.8.8.8", 53, "TCP"), ("52.216.0.1", 80, "TCP"), ("52.216.0.1", 22, "TCP"),
        (METADATA, 80, "TCP"), (METADATA, 443, "TCP"), ("fd00:ec2::254", 443, "TCP"), ("fe80::1", 443, "TCP"),
    ):  # fmt: skip
        assert not admits(outgoing, "to", peer, port, protocol), (peer, port)


def test_the_driver_has_no_right_that_reads_secrets_or_gives_more_rights() -> None:
    rights = {
        (resource, verb) for rule in one("Role")["rules"] for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert {resource for resource, _ in rights} == {"pods", "configmaps", "services", "persistentvolumeclaims"}
    assert not {verb for _, verb in rights} & {"*", "escalate", "bind", "impersonate", "update"}
    assert {verb for resource, verb in rights if resource.startswith(("services", "pers"))} == {
        "delete", "deletecollection", "list"
    }  # fmt: skip
    assert not [o for o in APPLIED if o["kind"].startswith("Cluster")], "nothing beyond the namespace"


def test_the_namespace_refuses_pods_that_are_more_than_restricted() -> None:
    labels = one("Namespace")["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"restricted"}
    (commands,) = [
        block for block in blocks((ROOT / "docs/kubernetes.md").read_text("utf-8"), "sh") if "cluster/" in block
    ]
    assert commands.splitlines()[0] == "kubectl apply -f deploy/kubernetes/cluster/"
    assert f"-n {one('Namespace')['metadata']['name']} " in commands


def test_the_admission_policy_names_what_executors_have() -> None:
    policy, binding = one("ValidatingAdmissionPolicy"), one("ValidatingAdmissionPolicyBinding")["spec"]
    spec = policy["spec"]
    assert (spec["failurePolicy"], binding["validationActions"]) == ("Fail", ["Deny"])
    assert binding["policyName"] == policy["metadata"]["name"]
    namespace = binding["matchResources"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert namespace == one("Namespace")["metadata"]["name"]
    (condition,) = spec["matchConditions"]
    assert f"':{DRIVER['spec']['serviceAccountName']}'" in condition["expression"]
    text = " ".join(each["expression"] for each in spec["validations"])
    executor = container(TEMPLATE)
    for name in (
        TEMPLATE["spec"]["serviceAccountName"],
        executor["image"],
        executor["envFrom"][0]["secretRef"]["name"],
    ):
        assert f"'{name}'" in text
    assert text.count("(") == text.count(")")
    assert all({"emptyDir"} & volume.keys() for volume in TEMPLATE["spec"]["volumes"]), (
        "the volumes that it lets through"
    )


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


def test_the_image_copies_what_exists_and_nothing_that_is_ignored() -> None:
    lines = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY") and "--from" not in line]
    sources = [each for line in lines for each in line if not each.startswith("--")]
    built = "dist/penstock_streams-*.whl"
    assert [each for each in sources if not (ROOT / each).is_file()] == [built]
    allowed = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = sorted("dist/*.whl" if each == built else each for each in sources)
    assert allowed == ["*", *(f"!{each}" for each in copied)]
    assert str(ENTRY_POINT.relative_to(ROOT)) in sources


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
    command = ["sh", "-c", 'umask 022; exec "$@"', "sh", "bash", str(ENTRY_POINT), *arguments]
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
