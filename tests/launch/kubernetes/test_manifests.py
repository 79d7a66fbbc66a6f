"""The manifests' requests to the cluster: resources, rights, and the handling of failures."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tfdist.launch.kubernetes.manifests import to_yaml

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]
Pods = Callable[..., list[Manifest]]


@pytest.fixture
def make_pods(make: Make, templates: Callable[[Any], list[Manifest]]) -> Pods:
    return lambda *options: [template["spec"] for template in templates(make(*options))]


def test_all_resources_for_training_on_many_devices_can_be_requested(
    make_pods: Pods, kind: list[str]
) -> None:
    options = ["--cpu=32", "--memory=200Gi", "--gpus=4", "--shared-memory=10Gi", "--host-ipc=yes"]
    pods = [pod for pod in make_pods(*kind, *options) if not _is_launcher(pod)]
    for pod in pods:
        [container] = pod["containers"]
        amounts = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "4"}
        assert container["resources"] == {"limits": amounts, "requests": amounts}
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
        memory = {"medium": "Memory", "sizeLimit": "10Gi"}
        assert {"name": "shared-memory", "emptyDir": memory} in pod["volumes"]
        assert pod["hostIPC"] is True
    assert pods


def test_memory_can_be_pinned_by_root_alone(make_pods: Pods, kind: list[str]) -> None:
    # Without an engine: the key that Trainer mounts cannot be used by root.
    found = make_pods(*kind[:2], "--ipc-lock=yes", "--run-as-user=0")
    pods = [pod for pod in found if not _is_launcher(pod)]
    for pod in pods:
        capabilities = pod["containers"][0]["securityContext"]["capabilities"]
        assert "IPC_LOCK" in capabilities["add"]
        assert capabilities["drop"] == ["ALL"]
    assert pods


def test_by_default_pods_have_no_right_that_a_restricted_namespace_forbids(
    make_pods: Pods, kind: list[str]
) -> None:
    pods = make_pods(*kind, "--evaluator", "--volume=a:/mnt/a")
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


def test_a_launcher_has_none_of_the_rights_and_devices_of_a_worker(
    make_pods: Pods, kind: list[str]
) -> None:
    options = ["--host-ipc=yes", "--gpus=8", "--volume=a:/mnt/a"]
    launchers = [pod for pod in make_pods(*kind, *options) if _is_launcher(pod)]
    assert len(launchers) == ("--engine=horovod" in kind or "mpijob" in kind)
    for pod in launchers:
        assert not {"hostIPC", "volumes"} & pod.keys()
        assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]


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
    make_pods: Pods, kind: list[str], options: list[str], amounts: dict[str, str]
) -> None:
    workers = ["--cpu=32", "--memory=200Gi", "--gpus=4", "--num-instances=2", "--evaluator"]
    found = [
        pod["containers"][0]["resources"]["limits"]
        for pod in make_pods(*kind, *workers, *options)
        if not _is_launcher(pod)
    ]
    of_workers = {"cpu": "32", "memory": "200Gi", "nvidia.com/gpu": "4"}
    assert found == [of_workers] * (2 if "tfjob" in kind else 1) + [amounts]


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


def test_only_the_runs_own_pods_may_connect_to_its_pods(
    make: Make, templates: Callable[[Any], list[Manifest]], kind: list[str]
) -> None:
    documents = make(*kind, "--evaluator")
    policy = documents[0]
    assert policy["kind"] == "NetworkPolicy"
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": chosen}}]}]
    found = templates(documents)
    assert found
    for template in found:
        assert template["metadata"]["labels"].items() >= chosen.items()
    kinds = [document["kind"] for document in make(*kind, "--network-policy=no")]
    assert "NetworkPolicy" not in kinds


def test_a_queue_holds_back_the_run_and_nothing_else(
    make: Make, templates: Callable[[Any], list[Manifest]], kind: list[str]
) -> None:
    name = "kueue.x-k8s.io/queue-name"
    documents = make(*kind, "--queue=gpu", "--evaluator")
    queued = {
        document["kind"]
        for document in documents
        if document["metadata"]["labels"].get(name) == "gpu"
    }
    assert queued and queued <= {"Job", "TFJob", "MPIJob", "TrainJob"}
    for template in templates(documents):
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


def test_the_yaml_reads_as_the_manifests_that_it_was_made_from(make: Make) -> None:
    words = ("y", "no", "1e-3", "0o17", "12:30:00", "~", "", "- a", "#", "ä", "\t", "a: b", "'\"")
    documents = make("--evaluator", command=("python", *words))
    text = to_yaml(documents)
    assert list(yaml.safe_load_all(text)) == documents
    # Without quotes, another parser may not read as text what PyYAML does.
    for word in ("y", "1e-3", "0o17"):
        assert f"- {word}\n" not in text
        assert f"- '{word}'\n" in text


def _is_launcher(pod: Manifest) -> bool:
    return "mpirun" in pod["containers"][0]["command"]
