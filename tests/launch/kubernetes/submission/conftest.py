"""An emulated Kubernetes API server that keeps the submitted objects and refuses unknown fields."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

Manifest = dict[str, Any]

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
_VERBS = ["create", "delete", "get", "list", "patch"]
_OBJECT = re.compile(
    r"/apis?/(?P<version>v1|[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?"
)


@dataclass(frozen=True, kw_only=True)
class ApiServer:
    """The server, seen from a test.

    kubeconfig: The file that directs kubectl to it.
    objects: The stored manifests by (namespace, kind, name), in the order of submission.
    requests: "METHOD /path?query" of every request.
    """

    kubeconfig: Path
    validate: Callable[[Manifest], None]
    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def api_server(tmp_path: Path, validate: Callable[[Manifest], None]) -> Iterator[ApiServer]:
    server = ApiServer(kubeconfig=tmp_path / "kubeconfig", validate=validate)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _serve(self) -> None:
            server.requests.append(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length) or "null")
            code, answer = _answer(server, self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        context = {"cluster": "emulated", "namespace": "team-a", "user": "me"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "emulated",
                    "cluster": {"server": f"http://127.0.0.1:{http.server_port}"},
                }
            ],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "emulated", "context": context}],
            "current-context": "emulated",
        }
        server.kubeconfig.write_text(json.dumps(config))
        yield server
        http.shutdown()
        thread.join()


def _answer(server: ApiServer, method: str, path: str, body: Any) -> tuple[int, Manifest]:
    url = urlsplit(path)
    match = _OBJECT.fullmatch(url.path)
    if match is None:
        found = _discovery(url.path)
        return (200, found) if found else (404, _failure(404, "NotFound", url.path))
    kind = _RESOURCES.get(match["version"], {}).get(match["plural"])
    if kind is None:
        return 404, _failure(404, "NotFound", match["plural"])
    query = parse_qs(url.query)
    is_trial = query.get("dryRun") == ["All"]
    is_strict = query.get("fieldValidation") == ["Strict"]
    name = match["name"] or (body or {}).get("metadata", {}).get("name")
    key = (match["namespace"], kind, name)
    if method == "POST":
        if key in server.objects:
            return 409, _failure(409, "AlreadyExists", f"{kind} {name} already exists")
        try:
            if is_strict:
                server.validate(body)
        except jsonschema.ValidationError as error:
            return 400, _failure(400, "BadRequest", f"strict decoding error: {error.message}")
        body["metadata"] |= {"namespace": match["namespace"], "uid": str(len(server.objects))}
        if not is_trial:
            server.objects[key] = body
        return 201, body
    if name is None:
        items = [one for (where, what, _), one in server.objects.items() if what == kind]
        return 200, {"apiVersion": match["version"], "kind": f"{kind}List", "items": items}
    if key not in server.objects:
        return 404, _failure(404, "NotFound", f"{kind} {name} not found")
    if method == "DELETE":
        server.objects.pop(key)
        return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}
    if method == "PATCH" and not is_trial:
        server.objects[key] = _merged(server.objects[key], body)
    return 200, server.objects[key]


def _discovery(path: str) -> Manifest | None:
    groups = sorted({version.partition("/")[0] for version in _RESOURCES if "/" in version})
    if path == "/version":
        return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {
            "apiVersion": "v1",
            "kind": "APIGroupList",
            "groups": [_group(name) for name in groups],
        }
    if path == "/openapi/v3":
        return {"paths": {place: {"serverRelativeURL": f"{path}/{place}"} for place in _PLACES}}
    if path.startswith("/openapi/v3/"):
        return _open_api(_PLACES[path.removeprefix("/openapi/v3/")])
    version = _PLACES.get(path[1:], "")
    if not version:
        return None
    return {
        "apiVersion": "v1",
        "kind": "APIResourceList",
        "groupVersion": version,
        "resources": [
            {
                "name": plural,
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": _VERBS,
            }
            for plural, kind in _RESOURCES[version].items()
        ],
    }


def _open_api(version: str) -> Manifest:
    """Declares for each resource that the server itself refuses unknown fields."""
    group, _, number = version.rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
    paths = {
        f"/{plural}/{{name}}": {
            "patch": {
                "parameters": parameters,
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": number,
                    "kind": kind,
                },
            }
        }
        for plural, kind in _RESOURCES[version].items()
    }
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


def _merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = {**old, **{name: _merged(old.get(name), value) for name, value in patch.items()}}
    return {name: value for name, value in new.items() if value is not None}
