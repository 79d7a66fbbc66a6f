"""Manifests as the command makes them, their schemas, and the pods that a cluster makes of them."""

import copy
import functools
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tfdist.launch.kubernetes.checks import check
from tfdist.launch.kubernetes.job_options import KUBERNETES, job_options
from tfdist.launch.kubernetes.manifests import manifests

Manifest = dict[str, Any]

_SCHEMAS = Path(__file__).with_name("schemas")
# Versions of Kubernetes, from the first one with all fields that the manifests use.
_OLDEST, _NEWEST = "1.29", "1.37"

_NEEDED = ("--name=train", "--image=registry.example.com/train:1.0")


@pytest.fixture(scope="session")
def make() -> Callable[..., list[Manifest]]:
    """Returns the manifests of a command line; name and image need not be in it."""

    def make(*options: str, command: tuple[str, ...] = ("python", "train.py")) -> list[Manifest]:
        chosen = job_options(KUBERNETES.parse([*_NEEDED, *options, "--", *command]))
        check(chosen)
        return manifests(chosen)

    return make


@pytest.fixture(scope="session")
def validate() -> Callable[[Manifest], None]:
    """Raises jsonschema.ValidationError unless the published schema allows the manifest."""
    return _validate


def _validate(document: Manifest) -> None:
    # A ClusterTrainingRuntime has the schema of a TrainingRuntime, but no namespace.
    kind = document["kind"].removeprefix("Cluster")
    path = _SCHEMAS / f"{document['apiVersion'].replace('/', '_')}_{kind}.json.gz"
    if not path.exists():
        for version in (_OLDEST, _NEWEST):
            kubernetes_validate.validate(document, version, strict=True)
        return
    _custom_resource(path).validate(document)
    for template in _templates(document):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        kubernetes_validate.validate(pods, _NEWEST, strict=True)


@functools.cache
def _custom_resource(path: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_strict(json.loads(gzip.decompress(path.read_bytes()))))


def _strict(schema: Any) -> Any:
    """Refuses fields that the schema does not list; the API server would drop them silently."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _strict(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    return schema


def _templates(value: Any) -> list[Manifest]:
    """Returns the pods' templates in a manifest, or in a list of some, at any depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    is_template = isinstance(value, dict) and "containers" in value.get("spec", {})
    return [*([value] if is_template else []), *(one for x in inner for one in _templates(x))]


@pytest.fixture(scope="session")
def templates() -> Callable[[list[Manifest]], list[Manifest]]:
    """Finds the pods' templates in manifests, complete: with a TrainJob's part of a container."""

    def templates(documents: list[Manifest]) -> list[Manifest]:
        trainers = [one["spec"]["trainer"] for one in documents if one["kind"] == "TrainJob"]
        found = _templates(documents)
        for template in found:
            [container] = template["spec"]["containers"]
            if trainers and "command" not in container:
                container |= trainers[0]
        return found

    return templates


@pytest.fixture(
    params=["job", "tfjob", "mpijob", "trainjob", "trainjob --engine=horovod"],
    ids=lambda words: words.replace(" --engine=", "-"),
)
def kind(request: pytest.FixtureRequest) -> list[str]:
    """The options for each kind with each of its engines, in turn."""
    return ["--kind", *request.param.split()]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod as the cluster would start it.

    role: "worker", "chief", "evaluator" or "launcher".
    hostname: The output of `hostname` in it.
    dns_names: The names by which other pods find it.
    command, environment: Those of its container, with Kubernetes' replacements made.
    files: The files that an operator puts in it: path to text.
    key_folder: The folder where an operator mounts id_rsa, id_rsa.pub and authorized_keys, or None.
    user: The user and group id of all processes.
    capabilities: All capabilities of its container.
    claims: The mounted claims: path to claim.
    """

    role: str
    hostname: str
    dns_names: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    user: int
    capabilities: tuple[str, ...]
    claims: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    key_folder: str | None = None


@pytest.fixture(scope="session")
def pod_commands() -> Callable[..., list[Pod]]:
    """Does the controllers' work: returns the manifests' pods, training pods in worker order."""

    def pod_commands(documents: list[Manifest], namespace: str = "default") -> list[Pod]:
        runtimes = {
            document["metadata"]["name"]: document
            for document in documents
            if document["kind"].endswith("TrainingRuntime")
        }
        pods = []
        for document in documents:
            home = document["metadata"].get("namespace", namespace)
            if document["kind"] == "Job":
                pods += _job_pods(document, home)
            elif document["kind"] == "TFJob":
                pods += _tf_job_pods(document, home)
            elif document["kind"] == "MPIJob":
                pods += _mpi_job_pods(document, home)
            elif document["kind"] == "TrainJob":
                runtime = runtimes[document["spec"]["runtimeRef"]["name"]]
                pods += _train_job_pods(document, runtime, home)
        return pods

    return pod_commands


def _job_pods(job: Manifest, namespace: str) -> list[Pod]:
    name, spec = job["metadata"]["name"], job["spec"]
    pod = spec["template"]["spec"]
    if spec.get("completionMode") != "Indexed":
        return [_pod("evaluator", f"{name}-x1y2z", (), pod, namespace)]
    hostnames = [f"{name}-{index}" for index in range(spec["completions"])]
    assert spec["parallelism"] == spec["completions"]
    home = f"{pod['subdomain']}.{namespace}.svc"
    return [
        _pod("worker", hostname, (f"{hostname}.{home}",), pod, namespace, index=index)
        for index, hostname in enumerate(hostnames)
    ]


def _tf_job_pods(job: Manifest, namespace: str) -> list[Pod]:
    name, replicas = job["metadata"]["name"], job["spec"]["tfReplicaSpecs"]
    cluster = {
        role.lower(): [
            f"{name}-{role.lower()}-{index}.{namespace}.svc:2222"
            for index in range(spec["replicas"])
        ]
        for role, spec in replicas.items()
    }
    pods = []
    for role in ("Chief", "Worker", "Evaluator"):
        for index in range(replicas.get(role, {"replicas": 0})["replicas"]):
            pod = copy.deepcopy(replicas[role]["template"]["spec"])
            [container] = pod["containers"]
            assert container["name"] == "tensorflow"
            [port] = container["ports"]
            assert (port["name"], port["containerPort"]) == ("tfjob-port", 2222)
            if sum(len(addresses) for addresses in cluster.values()) > 1:
                task = {"type": role.lower(), "index": index}
                config = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
                container.setdefault("env", []).append({"name": "TF_CONFIG", "value": config})
            hostname = f"{name}-{role.lower()}-{index}"
            dns_names = (f"{hostname}.{namespace}.svc",)
            pods.append(_pod(role.lower(), hostname, dns_names, pod, namespace))
    return pods


def _mpi_job_pods(job: Manifest, namespace: str) -> list[Pod]:
    name, spec = job["metadata"]["name"], job["spec"]
    launcher, worker = (
        spec["mpiReplicaSpecs"][role]["template"]["spec"] for role in ("Launcher", "Worker")
    )
    hostnames = [
        f"{name}-worker-{index}" for index in range(spec["mpiReplicaSpecs"]["Worker"]["replicas"])
    ]
    dns_names = [f"{hostname}.{name}.{namespace}.svc" for hostname in hostnames]
    slots = spec["slotsPerWorker"]
    mounted = {"key_folder": spec["sshAuthMountPath"]}
    return [
        *(
            _pod("worker", hostname, (dns_name,), worker, namespace, **mounted)
            for hostname, dns_name in zip(hostnames, dns_names, strict=True)
        ),
        _launcher(f"{name}-launcher", launcher, namespace, dns_names, slots, **mounted),
    ]


def _train_job_pods(job: Manifest, runtime: Manifest, namespace: str) -> list[Pod]:
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    mpi = runtime["spec"]["mlPolicy"].get("mpi")
    mounted = {"key_folder": mpi["sshAuthMountPath"]} if mpi else {}
    dns_names = [f"{name}-node-0-{index}.{name}" for index in range(trainer["numNodes"])]
    pods = []
    for replicated in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        role, template = replicated["name"], replicated["template"]
        pod = copy.deepcopy(template["spec"]["template"]["spec"])
        labels = template.get("metadata", {}).get("labels", {})
        if labels.get("trainer.kubeflow.org/trainjob-ancestor-step") == "trainer":
            [container] = pod["containers"]
            assert container["name"] == "node"
            container |= {
                key: trainer[key] for key in ("image", "command", "args") if key in trainer
            }
            container["env"] = [*container.get("env", ()), *trainer.get("env", ())]
        if role == "node":
            for index, dns_name in enumerate(dns_names):
                names = (dns_name, f"{dns_name}.{namespace}.svc")
                hostname = dns_name.partition(".")[0]
                pods.append(_pod("worker", hostname, names, pod, namespace, index=index, **mounted))
        elif role == "launcher":
            pods.append(_launcher(f"{name}-launcher-0-0", pod, namespace, dns_names, 1, **mounted))
        else:
            pods.append(_pod(role, f"{name}-{role}-0-0", (), pod, namespace))
    return pods


def _launcher(
    hostname: str, pod: Manifest, namespace: str, hosts: list[str], slots: int, **mounted: str
) -> Pod:
    pod = copy.deepcopy(pod)
    set_by_operator = {
        "orte_keep_fqdn_hostnames": "true",
        "orte_default_hostfile": "/etc/mpi/hostfile",
        "plm_rsh_args": "-o ConnectionAttempts=10",
        "orte_set_default_slots": str(slots),
    }
    pod["containers"][0].setdefault("env", []).extend(
        {"name": f"OMPI_MCA_{name}", "value": value} for name, value in set_by_operator.items()
    )
    files = {"/etc/mpi/hostfile": "".join(f"{host} slots={slots}\n" for host in hosts)}
    return _pod("launcher", hostname, (), pod, namespace, files=files, **mounted)


def _pod(
    role: str,
    hostname: str,
    dns_names: tuple[str, ...],
    pod: Manifest,
    namespace: str,
    *,
    index: int | None = None,
    **more: Any,
) -> Pod:
    [container] = pod["containers"]
    fields = {
        "metadata.namespace": namespace,
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
    }
    environment: dict[str, str] = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            value = "the value of {name}/{key}".format(**source["secretKeyRef"])
        else:
            value = _expanded(variable["value"], environment)
        environment[variable["name"]] = value
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    rights = container["securityContext"]["capabilities"]
    assert rights["drop"] == ["ALL"]
    return Pod(
        role=role,
        hostname=hostname,
        dns_names=dns_names,
        command=tuple(
            _expanded(word, environment)
            for word in (*container["command"], *container.get("args", ()))
        ),
        environment=environment,
        user=pod["securityContext"]["runAsUser"],
        capabilities=tuple(rights.get("add", ())),
        claims={
            mount["mountPath"]: claims[mount["name"]]
            for mount in container.get("volumeMounts", ())
            if mount["name"] in claims
        },
        **more,
    )


def _expanded(text: str, environment: dict[str, str]) -> str:
    """Replaces $(NAME) as Kubernetes does: $$ is a $, and an unknown name stays as it is."""
    known = {f"$({name})": value for name, value in environment.items()} | {"$$": "$"}
    return re.sub(r"\$\$|\$\([^)]*\)", lambda match: known.get(match[0], match[0]), text)
