"""Manifests given to a real kubectl, which gives them to an emulated API server."""

import json
import re
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tfdist.launch.kubernetes import main

pytestmark = pytest.mark.processes

Manifest = dict[str, Any]
Submitted = tuple[int, str, str]
Submit = Callable[..., Submitted]

# Group/version: plural names and kinds.
_RESOURCES = {
    "v1": {"services": "Service"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "kubeflow.org/v1": {"tfjobs": "TFJob"},
    "kubeflow.org/v2beta1": {"mpijobs": "MPIJob"},
    "trainer.kubeflow.org/v1alpha1": {
        "trainjobs": "TrainJob",
        "trainingruntimes": "TrainingRuntime",
    },
}
_PLACES = {f"{'apis' if '/' in version else 'api'}/{version}": version for version in _RESOURCES}
_OBJECT = re.compile(
    r"/apis?/(?P<version>v1|[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?"
)
_KINDS = {
    "job": ["NetworkPolicy", "Service", "Job", "Job"],
    "trainjob": ["NetworkPolicy", "TrainingRuntime", "TrainJob"],
}
_NEEDED = ("--name=train", "--image=train:1", "--num-instances=2")


@dataclass(frozen=True, kw_only=True)
class ApiServer:
    """A server that keeps the submitted objects, seen from a test.

    objects: The stored manifests by (namespace, kind, name), in the order of submission.
    requests: "METHOD /path?query" of every request.
    """

    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The server to which kubectl gives what it gets."""
    server = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            server.requests.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length", 0))
            code, answer = _answer(server, self.path, self.rfile.read(length))
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=[0.01])
        thread.start()
        cluster = {"server": f"http://127.0.0.1:{http.server_port}"}
        context = {"cluster": "emulated", "namespace": "team-a", "user": "me"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "emulated", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "emulated", "context": context}],
            "current-context": "emulated",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        # kubectl caches the servers' features.
        monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
        yield server
        http.shutdown()
        thread.join()


def _answer(server: ApiServer, path: str, body: bytes) -> tuple[int, Manifest]:
    url = urlsplit(path)
    match = _OBJECT.fullmatch(url.path)
    if match is None:
        found = _discovery(url.path)
        return (200, found) if found else (404, _failure(404, "NotFound", url.path))
    kind = _RESOURCES[match["version"]][match["plural"]]
    manifest = json.loads(body or "{}")
    name = match["name"] or manifest["metadata"]["name"]
    key = (match["namespace"], kind, name)
    if match["name"]:
        found = server.objects.get(key)
        return (200, found) if found else (404, _failure(404, "NotFound", f"no {kind} {name}"))
    if key in server.objects:
        return 409, _failure(409, "AlreadyExists", f"{kind} {name} already exists")
    if parse_qs(url.query).get("dryRun") != ["All"]:
        server.objects[key] = manifest
    return 201, manifest


def _discovery(path: str) -> Manifest | None:
    """Returns what kubectl asks a server about its resources."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = sorted({version.partition("/")[0] for version in _RESOURCES if "/" in version})
        list_ = {"apiVersion": "v1", "kind": "APIGroupList"}
        return {**list_, "groups": [_group(name) for name in groups]}
    if path == "/openapi/v3":
        return {"paths": {place: {"serverRelativeURL": f"{path}/{place}"} for place in _PLACES}}
    if path.startswith("/openapi/v3/"):
        return _open_api(_PLACES[path.removeprefix("/openapi/v3/")])
    if path[1:] not in _PLACES:
        return None
    version = _PLACES[path[1:]]
    verbs = {"namespaced": True, "verbs": ["create", "get", "patch"]}
    resources = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, **verbs}
        for plural, kind in _RESOURCES[version].items()
    ]
    list_ = {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": version}
    return {**list_, "resources": resources}


def _open_api(version: str) -> Manifest:
    """Declares for each resource that the server itself refuses unknown fields."""
    group, _, number = version.rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
    paths = {}
    for plural, kind in _RESOURCES[version].items():
        of_kind = {"group": group, "version": number, "kind": kind}
        patch = {"parameters": parameters, "x-kubernetes-group-version-kind": of_kind}
        paths[f"/{plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "emulated", "version": "1"}, "paths": paths}


def _group(name: str) -> Manifest:
    versions = [
        {"groupVersion": version, "version": version.partition("/")[2]}
        for version in _RESOURCES
        if version.startswith(f"{name}/")
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _failure(code: int, reason: str, message: str) -> Manifest:
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure"}
    return {**status, "code": code, "reason": reason, "message": message}


@pytest.fixture
def submit(api_server: ApiServer, capfd: pytest.CaptureFixture[str]) -> Submit:
    """Runs `tfdist kubernetes`; returns the exit code and the output, with that of kubectl."""

    def submit(*options: str, command: tuple[str, ...] = ("python", "train.py")) -> Submitted:
        code = main([*_NEEDED, *options, "--", *command])
        out, err = capfd.readouterr()
        return code, out, err

    return submit


@pytest.mark.parametrize(("kind", "verb"), [("job", "apply"), ("trainjob", "create")])
def test_the_server_gets_the_manifests_as_written_and_not_twice(
    submit: Submit,
    make: Callable[..., list[Manifest]],
    api_server: ApiServer,
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
    code, _, err = submit("--create", *options, command=command)
    assert code == 1
    assert "already exists" in err


def test_objects_get_the_namespace_of_the_option(submit: Submit, api_server: ApiServer) -> None:
    assert submit("--kind=tfjob", "--namespace=team-b", "--apply")[0] == 0
    assert ("team-b", "TFJob", "train") in api_server.objects


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_dry_run_leaves_nothing_on_the_server(
    submit: Submit, api_server: ApiServer, where: str
) -> None:
    code, out, err = submit("--kind=mpijob", "--create", f"--dry-run={where}")
    assert code == 0, err
    assert "mpijob.kubeflow.org/train created" in out
    assert "dry run" in out
    assert "submitted" not in err
    assert api_server.objects == {}
    assert any("dryRun=All" in request for request in api_server.requests) == (where == "server")


def test_the_kustomization_of_the_guide_changes_the_workers_pods(
    submit: Submit, api_server: ApiServer, tmp_path: Path
) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()
    [kustomization] = re.findall(r"```yaml\n(resources: .*?)```", guide, re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    assert submit("--evaluator", f"--output={tmp_path / 'train.yaml'}")[0] == 0
    command = ["kubectl", "apply", "--kustomize", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert [kind for _, kind, _ in api_server.objects] == _KINDS["job"]
    workers, evaluator = (
        api_server.objects["team-a", "Job", name]["spec"]["template"]
        for name in ("train", "train-evaluator")
    )
    assert workers["metadata"]["labels"]["team"] == "vision"
    assert workers["spec"]["nodeSelector"] == {"pool": "train"}
    [container] = workers["spec"]["containers"]
    assert container["resources"]["limits"] == {"amd.com/gpu": 4}
    assert container["args"] == ["train.py"] and container["env"]
    assert "nodeSelector" not in evaluator["spec"]
