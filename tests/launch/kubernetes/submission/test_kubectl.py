"""Manifests given to a real kubectl, which gives them to an emulated API server."""

import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.kubernetes import main
from tfdist.launch.kubernetes.manifests import to_yaml

pytestmark = pytest.mark.processes

Submitted = tuple[int, str, str]
Submit = Callable[..., Submitted]

_KINDS = {
    "job": ["NetworkPolicy", "Service", "Job", "Job"],
    "trainjob": ["NetworkPolicy", "TrainingRuntime", "TrainJob"],
}
_NEEDED = ("--name=train", "--image=train:1", "--num-instances=2")
_LIMIT_S = 120


@pytest.fixture(autouse=True)
def kubectl_reaches_the_server(api_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    # kubectl caches the servers' features.
    monkeypatch.setenv("KUBECACHEDIR", str(api_server.kubeconfig.with_name("cache")))


@pytest.fixture
def submit(capfd: pytest.CaptureFixture[str]) -> Submit:
    """Runs `tfdist kubernetes`; returns the exit code and the output, with that of kubectl."""

    def submit(*options: str, command: tuple[str, ...] = ("python", "train.py")) -> Submitted:
        code = main([*_NEEDED, *options, "--", *command])
        out, err = capfd.readouterr()
        return code, out, err

    return submit


def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=_LIMIT_S)


@pytest.mark.parametrize(("kind", "verb"), [("job", "apply"), ("trainjob", "create")])
def test_the_server_gets_the_manifests_as_written(
    submit: Submit,
    make: Callable[..., list[dict[str, Any]]],
    api_server: Any,
    kind: str,
    verb: str,
) -> None:
    # To another YAML parser some of these are numbers, or true.
    command = ("python", "1e-3", "0o17", "y", "12:30:00", "~", "a: b", "\n", "", "$(HOME)", "ä")
    options = ["--kind", kind, "--evaluator", "--env=LR=1e3"]
    code, _, err = submit(f"--{verb}", *options, command=command)
    assert code == 0, err
    assert "kubectl logs --follow" in err
    expected = make(*_NEEDED, *options, command=command)
    # Into the namespace of kubectl's context.
    assert {namespace for namespace, _, _ in api_server.objects} == {"team-a"}
    assert [kind for _, kind, _ in api_server.objects] == _KINDS[kind]
    for held, manifest in zip(api_server.objects.values(), expected, strict=True):
        assert held["spec"] == manifest["spec"]
        assert held["metadata"]["labels"] == manifest["metadata"]["labels"]


def test_submitted_objects_can_be_listed_and_deleted(submit: Submit, api_server: Any) -> None:
    assert submit("--kind=trainjob", "--namespace=team-b", "--apply")[0] == 0
    listed = kubectl("get", "trainjobs,trainingruntimes", "--namespace=team-b", "--output=name")
    assert listed.stdout.split() == [
        "trainjob.trainer.kubeflow.org/train",
        "trainingruntime.trainer.kubeflow.org/train",
    ]
    for resource in ("trainjob", "trainingruntime", "networkpolicy"):
        gone = kubectl("delete", resource, "train", "--namespace=team-b", "--wait=false")
        assert gone.returncode == 0, gone.stderr
    assert api_server.objects == {}


def test_a_second_apply_updates_the_objects_and_a_second_create_is_refused(
    submit: Submit, api_server: Any
) -> None:
    assert submit("--kind=tfjob", "--apply")[0] == 0
    assert submit("--kind=tfjob", "--apply", "--active-deadline=9")[0] == 0
    job = api_server.objects["team-a", "TFJob", "train"]
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] == 9
    code, _, err = submit("--kind=tfjob", "--create")
    assert code == 1
    assert "already exists" in err


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_dry_run_leaves_nothing_on_the_server(
    submit: Submit, api_server: Any, where: str
) -> None:
    code, out, err = submit("--kind=mpijob", "--create", f"--dry-run={where}")
    assert code == 0, err
    assert "mpijob.kubeflow.org/train created" in out
    assert "dry run" in out
    assert "submitted" not in err
    assert api_server.objects == {}
    assert any("dryRun=All" in request for request in api_server.requests) == (where == "server")


def test_a_typo_in_a_manifest_would_be_refused_by_the_server(
    make: Callable[..., list[dict[str, Any]]], api_server: Any, tmp_path: Path
) -> None:
    *_, job = make("--kind=mpijob")
    job["spec"]["slotPerWorker"] = 1
    path = tmp_path / "typo.yaml"
    path.write_text(to_yaml([job]))
    done = kubectl("create", "--filename", str(path))
    assert done.returncode == 1
    assert "slotPerWorker" in done.stderr
    assert api_server.objects == {}
