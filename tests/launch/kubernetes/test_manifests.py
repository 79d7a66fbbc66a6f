"""The manifests' requests to the cluster: resources, rights, and the handling of failures."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tfdist.launch.kubernetes.manifests import to_yaml
from tfdist.launch.kubernetes.pods import checked

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]

_KINDS = ("job", "tfjob", "mpijob", "trainjob", "trainjob --engine=horovod")
every_kind = pytest.mark.parametrize("kind", _KINDS)


@every_kind
def test_all_resources_for_training_on_many_devices_can_be_requested(make: Make, kind: str) -> None:
    options = ["--cpu=32", "--memory=200Gi", "--gpus=4", "--shared-memory=10Gi", "--host-ipc=yes"]
    pods = list(_training_pods(make("--kind", *kind.split(), *options)))
    for pod in pods:
        [container] = pod["containers"]
        amounts = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "4"}
        assert container["resources"] == {"limits": amounts, "requests": amounts}
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
        memory = {"medium": "Memory", "sizeLimit": "10Gi"}
        assert {"name": "shared-memory", "emptyDir": memory} in pod["volumes"]
        assert pod["hostIPC"] is True
    assert pods


@pytest.mark.parametrize("kind", _KINDS[:4])
def test_memory_can_be_pinned_by_root_alone(make: Make, kind: str) -> None:
    pods = list(_training_pods(make("--kind", kind, "--ipc-lock=yes", "--run-as-user=0")))
    for pod in pods:
        capabilities = pod["containers"][0]["securityContext"]["capabilities"]
        assert "IPC_LOCK" in capabilities["add"]
        assert capabilities["drop"] == ["ALL"]
    assert pods


@every_kind
def test_by_default_pods_have_no_right_that_a_restricted_namespace_forbids(
    make: Make, kind: str
) -> None:
    pods = list(_pods(make("--kind", *kind.split(), "--evaluator", "--volume=a:/mnt/a")))
    assert pods
    for pod in pods:
        assert not {"hostIPC", "hostPID", "hostNetwork"} & pod.keys()
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for volume in pod.get("volumes", ()):
            assert {"emptyDir", "persistentVolumeClaim"} & volume.keys()
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not [port for port in container.get("ports", ()) if "hostPort" in port]


@every_kind
def test_a_launcher_has_none_of_the_rights_and_devices_of_a_worker(make: Make, kind: str) -> None:
    options = ["--host-ipc=yes", "--gpus=8", "--volume=a:/mnt/a"]
    pods = list(_pods(make("--kind", *kind.split(), *options)))
    launchers = [pod for pod in pods if not _is_worker(pod)]
    assert len(launchers) == ("horovod" in kind or kind == "mpijob")
    for pod in launchers:
        assert not {"hostIPC", "volumes"} & pod.keys()
        assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("kind", ["job", "tfjob", "mpijob", "trainjob"])
@pytest.mark.parametrize(
    ("options", "amounts"),
    [
        ([], {"cpu": "32", "memory": "200Gi"}),
        (
            ["--evaluator-cpu=4", "--evaluator-memory=16Gi", "--evaluator-gpus=1"],
            {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
        ),
    ],
)
def test_an_evaluator_has_no_gpu_and_as_much_as_a_worker_unless_asked_for(
    make: Make, kind: str, options: list[str], amounts: dict[str, str]
) -> None:
    workers = ["--cpu=32", "--memory=200Gi", "--gpus=4", "--num-instances=2", "--evaluator"]
    found = [
        container["resources"]["limits"]
        for pod in _training_pods(make("--kind", kind, *workers, *options))
        for container in pod["containers"]
    ]
    of_workers = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "4"}
    assert found == [of_workers] * (2 if kind == "tfjob" else 1) + [amounts]


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_one_cluster_runtime_serves_train_jobs_of_all_names_and_sizes(
    make: Make, validate: Callable[[Manifest], None], pod_commands: Callable[..., Any], engine: str
) -> None:
    kind = ("--kind=trainjob", f"--engine={engine}")
    shared = ("--name=of-all", "--cluster-runtime", "--gpus=4", "--volume=data:/mnt/data")
    [runtime] = make(*kind, *shared, command=())
    validate(runtime)
    assert runtime["kind"] == "ClusterTrainingRuntime"
    assert "namespace" not in runtime["metadata"]
    assert "of-all" not in str(runtime["spec"])
    for name, size in (("first", "2"), ("second", "3")):
        policy, job = make(*kind, "--runtime=of-all", f"--name={name}", f"--num-instances={size}")
        validate(job)
        reference = job["spec"]["runtimeRef"]
        assert (reference["kind"], reference["name"]) == ("ClusterTrainingRuntime", "of-all")
        assert policy["spec"]["podSelector"] == {
            "matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}
        }
        own = make(*kind, *shared[2:], f"--name={name}", f"--num-instances={size}")
        assert pod_commands([runtime, job]) == pod_commands(own)


@every_kind
def test_only_the_runs_own_pods_may_connect_to_its_pods(make: Make, kind: str) -> None:
    documents = make("--kind", *kind.split(), "--evaluator")
    policy = documents[0]
    assert policy["kind"] == "NetworkPolicy"
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    templates = list(_templates(documents))
    assert templates
    for template in templates:
        assert template["metadata"]["labels"].items() >= chosen.items()
    kinds = [document["kind"] for document in make("--kind", *kind.split(), "--network-policy=no")]
    assert "NetworkPolicy" not in kinds


@every_kind
def test_a_queue_holds_back_the_run_and_nothing_else(make: Make, kind: str) -> None:
    name = "kueue.x-k8s.io/queue-name"
    documents = make("--kind", *kind.split(), "--queue=gpu", "--evaluator")
    queued = {
        document["kind"]
        for document in documents
        if document["metadata"]["labels"].get(name) == "gpu"
    }
    assert queued and queued <= {"Job", "TFJob", "MPIJob", "TrainJob"}
    for template in _templates(documents):
        assert name not in template["metadata"]["labels"]


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_a_job_starts_workers_again_but_never_after_a_bad_configuration(
    make: Make, max_restarts: int
) -> None:
    *_, job = make(f"--max-restarts={max_restarts}", "--num-instances=2", "--active-deadline=60")
    spec = job["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (max_restarts, 0)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 60
    bad, *others = spec["podFailurePolicy"]["rules"]
    assert bad == {
        "action": "FailJob",
        "onExitCodes": {"operator": "In", "values": [2, 28]},
    }
    # A pod that Kubernetes itself removed does not count, if the job restarts pods at all.
    assert [rule["action"] for rule in others] == (["Ignore"] if max_restarts else [])


def test_the_service_shows_workers_to_each_other_before_they_are_ready(make: Make) -> None:
    _, service, job = make("--num-instances=2")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    template = job["spec"]["template"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert template["metadata"]["labels"].items() >= service["spec"]["selector"].items()


@pytest.mark.parametrize(("max_restarts", "policy"), [(0, "Never"), (2, "ExitCode")])
def test_a_tf_job_leaves_restarts_to_the_exit_code(
    make: Make, max_restarts: int, policy: str
) -> None:
    *_, job = make("--kind=tfjob", "--num-instances=2", f"--max-restarts={max_restarts}")
    assert job["spec"]["runPolicy"]["backoffLimit"] == max_restarts
    for replicas in job["spec"]["tfReplicaSpecs"].values():
        assert replicas["restartPolicy"] == policy


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_train_job_starts_all_pods_again_but_never_after_a_bad_configuration(
    make: Make, engine: str
) -> None:
    _, runtime, job = make("--kind=trainjob", f"--engine={engine}", "--max-restarts=3")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    jobs = runtime["spec"]["template"]["spec"]
    assert jobs["failurePolicy"]["maxRestarts"] == 3
    [rule] = jobs["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    for replicated in jobs["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        assert spec["backoffLimit"] == 0
        assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 28]


def test_a_secret_is_named_and_not_written(make: Make) -> None:
    documents = make("--secret-env=API_TOKEN=my-secret:token")
    [container] = documents[-1]["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "my-secret", "key": "token"}}
    assert container["env"][-1] == {"name": "API_TOKEN", "valueFrom": reference}


@every_kind
def test_the_yaml_reads_as_the_manifests_that_it_was_made_from(make: Make, kind: str) -> None:
    words = ("y", "no", "1e-3", "0o17", "12:30:00", "~", "", "- a", "#", "ä", "\t", "a: b", "'\"")
    documents = make("--kind", *kind.split(), "--evaluator", command=("python", *words))
    text = to_yaml(documents)
    assert list(yaml.safe_load_all(text)) == documents
    # Without quotes, another parser may not read as text what PyYAML does.
    for word in ("y", "1e-3", "0o17"):
        assert f"- {word}\n" not in text
        assert f"- '{word}'\n" in text


def test_fields_unknown_to_the_typed_models_are_refused() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIp": "None"}}
    with pytest.raises(ValueError, match="clusterIp"):
        checked("IoK8sApiCoreV1Service", service)
    with pytest.raises(ValueError, match="completions"):
        checked("IoK8sApiBatchV1JobSpec", {"completions": "2", "template": {}})


def _templates(value: Any) -> Iterator[Manifest]:
    if isinstance(value, list):
        for one in value:
            yield from _templates(one)
    elif isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for one in value.values():
            yield from _templates(one)


def _pods(documents: list[Manifest]) -> Iterator[Manifest]:
    """Yields all pods' specs, complete: a TrainJob's part of the container is in it."""
    trainers = [one["spec"]["trainer"] for one in documents if one["kind"] == "TrainJob"]
    for template in _templates(documents):
        pod = template["spec"]
        if "command" not in pod["containers"][0]:
            pod["containers"][0] |= trainers[0]
        yield pod


def _training_pods(documents: list[Manifest]) -> Iterator[Manifest]:
    return (pod for pod in _pods(documents) if _is_worker(pod))


def _is_worker(pod: Manifest) -> bool:
    return "mpirun" not in pod["containers"][0]["command"]
