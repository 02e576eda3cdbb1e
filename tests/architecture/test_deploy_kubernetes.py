"""The manifests of `deploy/kubernetes`: fields that exist, selectors that match, commands that run, and nothing more than is needed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml
from deployed import PROCESSES, ROOT, SECRETS, STOPPING_S, read_command, read_environment, unknown

from flujo_client.config.manager import Settings

FOLDER = ROOT / "deploy/kubernetes"


def read(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


KUSTOMIZATION = read("kustomization.yaml")[0]
ALL = [manifest for name in KUSTOMIZATION["resources"] for manifest in read(name)]
BY_NAME = {(each["kind"], each["metadata"]["name"]): each for each in ALL}
DEPLOYMENTS = {name: BY_NAME["Deployment", f"flujo-{name}"] for name in ("worker", "coordinator", "beat")}
MIGRATE = BY_NAME["Job", "flujo-migrate"]
TEMPLATES = {name: each["spec"]["template"] for name, each in {**DEPLOYMENTS, "migrate": MIGRATE}.items()}
PODS = {name: template["spec"] for name, template in TEMPLATES.items()}
SCALING = BY_NAME["ScaledObject", "flujo-worker"]

each_pod = pytest.mark.parametrize("name", PODS)
each_deployment = pytest.mark.parametrize("name", DEPLOYMENTS)


def fields(names, **deeper):
    return dict.fromkeys(names.split()) | deeper


# The fields of the API that may stand here; a slip of the pen is dropped in silence by some servers.
META = fields("name labels")
PROBE = fields("exec periodSeconds timeoutSeconds failureThreshold", exec=fields("command"))
CONTAINER = fields(
    "name image args envFrom",
    startupProbe=PROBE,
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=fields("requests limits"),
    securityContext=fields("allowPrivilegeEscalation readOnlyRootFilesystem capabilities"),
    volumeMounts=[fields("name mountPath")],
)
POD = fields(
    "enableServiceLinks automountServiceAccountToken terminationGracePeriodSeconds restartPolicy",
    securityContext=fields("runAsNonRoot runAsUser runAsGroup fsGroup seccompProfile"),
    containers=[CONTAINER],
    volumes=[fields("name", emptyDir=fields("medium sizeLimit"))],
)
TEMPLATE = {"metadata": META, "spec": POD}
SPECS = {
    ("v1", "ConfigMap"): None,
    ("batch/v1", "Job"): fields("backoffLimit", template=TEMPLATE),
    ("apps/v1", "Deployment"): fields(
        "replicas selector", strategy=fields("type", rollingUpdate=fields("maxSurge maxUnavailable")), template=TEMPLATE
    ),
    ("policy/v1", "PodDisruptionBudget"): fields("maxUnavailable minAvailable", selector=fields("matchLabels")),
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        "scaleTargetRef pollingInterval minReplicaCount maxReplicaCount",
        fallback=fields("failureThreshold replicas"),
        advanced=fields(
            "", horizontalPodAutoscalerConfig={"behavior": fields("", scaleDown=fields("stabilizationWindowSeconds"))}
        ),
        triggers=[fields("type", metadata=fields("connectionFromEnv targetQueryValue query"))],
    ),
}


@pytest.mark.parametrize("manifest", ALL, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_has_no_field_that_does_not_exist(manifest):
    known = SPECS[manifest["apiVersion"], manifest["kind"]]
    shape = {"apiVersion": None, "kind": None, "metadata": META}
    assert unknown(manifest, {**shape, ("data" if known is None else "spec"): known}) == []


def test_every_file_is_applied():
    assert {file.name for file in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    assert (KUSTOMIZATION["apiVersion"], KUSTOMIZATION["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert {pod["containers"][0]["image"] for pod in PODS.values()} == {
        each["name"] for each in KUSTOMIZATION["images"]
    }


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kustomize_takes_them():
    made = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True, timeout=60)
    assert len(list(yaml.safe_load_all(made.stdout))) == len(ALL)


@each_pod
def test_every_process_has_its_command(name):
    [container] = PODS[name]["containers"]
    assert container["args"] == PROCESSES[name]


@each_pod
def test_the_environment_is_one_that_is_read(name):
    """Production mode demands what the Secret has to bring."""
    assert PODS[name]["containers"][0]["envFrom"] == [
        {"configMapRef": {"name": "flujo"}},
        {"secretRef": {"name": "flujo"}},
    ]
    assert PODS[name]["enableServiceLinks"] is False
    assert read_environment(BY_NAME["ConfigMap", "flujo"]["data"] | SECRETS).mode == "production"


@each_pod
def test_no_more_is_allowed_than_is_needed(name):
    pod, [container] = PODS[name], PODS[name]["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"].keys() == {"requests", "limits"}


@each_deployment
def test_selectors_match_the_labels_of_one_deployment(name):
    wanted = DEPLOYMENTS[name]["spec"]["selector"]["matchLabels"]
    assert [other for other, each in TEMPLATES.items() if wanted.items() <= each["metadata"]["labels"].items()] == [
        name
    ]


@each_deployment
def test_a_probe_is_about_that_very_process(name):
    """It looks at the file that the process touches, on a volume of its own; a restart is the last thing it does."""
    [container] = PODS[name]["containers"]
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    asked = [read_command(probe["exec"]["command"]) for probe in probes]
    [file] = {each["file"] for each in asked}
    assert str(file) == BY_NAME["ConfigMap", "flujo"]["data"]["FLUJO_WORKER_HEARTBEAT_FILE"]
    assert str(file.parent) in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in PODS[name]["volumes"]}
    assert asked[0]["max_age"] == asked[1]["max_age"] < asked[2]["max_age"]
    assert asked[0]["max_age"] > 2 * Settings().worker.lease_s
    assert all(probe["timeoutSeconds"] >= 10 for probe in probes)


def test_workers_have_time_to_finish_and_beat_is_alone():
    for name in ("worker", "coordinator"):
        assert PODS[name]["terminationGracePeriodSeconds"] >= STOPPING_S
    assert (DEPLOYMENTS["beat"]["spec"]["replicas"], DEPLOYMENTS["beat"]["spec"]["strategy"]["type"]) == (1, "Recreate")


@pytest.mark.parametrize("name", ["worker", "coordinator"])
def test_what_may_be_disrupted_is_there(name):
    [labels] = [BY_NAME["PodDisruptionBudget", f"flujo-{name}"]["spec"]["selector"]["matchLabels"]]
    assert labels.items() <= TEMPLATES[name]["metadata"]["labels"].items()


def test_the_scaling_is_of_the_workers_by_what_one_of_them_takes():
    """Whoever scales must be the only one to say how many."""
    assert SCALING["spec"]["scaleTargetRef"] == {"name": DEPLOYMENTS["worker"]["metadata"]["name"]}
    assert "replicas" not in DEPLOYMENTS["worker"]["spec"]
    [trigger] = SCALING["spec"]["triggers"]
    assert 0 < int(trigger["metadata"]["targetQueryValue"]) < Settings().worker.concurrency
    assert trigger["metadata"]["connectionFromEnv"] in SECRETS
