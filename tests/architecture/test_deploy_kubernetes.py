"""The manifests of `deploy/kubernetes`: fields that exist, selectors that match, commands that run, and nothing more than is needed."""

import copy
import json
import shutil
import subprocess

import pytest
import yaml
from deployed import PROCESSES, ROOT, SECRETS, STOPPING_S, read_command, read_environment, unknown
from jsonschema_rs import validator_for

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


SCHEMAS = json.loads((ROOT / "tests/golden/kubernetes_1_34.json").read_text(encoding="utf-8"))
"""Kubernetes' own, made by `kubernetes_schemas.py`; no field is known that they do not name, for some servers drop such fields in silence."""
# KEDA's kind is none of Kubernetes' own.
SCALED_OBJECT = fields(
    "apiVersion kind",
    metadata=fields("name labels"),
    spec=fields(
        "scaleTargetRef pollingInterval minReplicaCount maxReplicaCount",
        fallback=fields("failureThreshold replicas"),
        advanced=fields(
            "", horizontalPodAutoscalerConfig={"behavior": fields("", scaleDown=fields("stabilizationWindowSeconds"))}
        ),
        triggers=[fields("type", metadata=fields("connectionFromEnv targetQueryValue query"))],
    ),
)


def faults(manifest):
    """What Kubernetes' schema of its kind says of a manifest."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    name = f"io.k8s.api.{group or 'core'}.{version}.{manifest['kind']}"
    checked = {**SCHEMAS, "$ref": f"#/definitions/{name}"}
    return [f"{list(each.instance_path)}: {each.message}" for each in validator_for(checked).iter_errors(manifest)]


@pytest.mark.parametrize("manifest", ALL, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_manifest_holds_under_the_published_schema(manifest):
    """M-003, SYS-30: names, types and needed fields."""
    assert (unknown(manifest, SCALED_OBJECT) if manifest["kind"] == "ScaledObject" else faults(manifest)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec["template"]["spec"]["containers"][0].update(livenessprobe={}), "livenessprobe"),
        (lambda spec: spec.update(replicas="two"), '"two"'),
        (lambda spec: spec.pop("selector"), "selector"),
        (lambda spec: spec["template"]["spec"]["securityContext"].update(runAsUser="flujo"), '"flujo"'),
    ],
)
def test_a_manifest_with_a_fault_is_refused_by_it(change, said):
    """The schemas find a field in the wrong case, a wrong type, and what is missing."""
    broken = copy.deepcopy(DEPLOYMENTS["worker"])
    change(broken["spec"])
    assert any(said in each for each in faults(broken))


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
    """It looks at the file that the process touches, on its own volume; a restart is the last thing it does."""
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
