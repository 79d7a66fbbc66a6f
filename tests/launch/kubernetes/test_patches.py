"""`--patch FILE`: strategic merge into the pods of each kind, and into whole manifests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.patches import Patch, patched, read_patches

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]

_KINDS = ("job", "tfjob", "mpijob", "trainjob", "trainjob --engine=horovod")
# Fields that no option sets, in one file.
_PODS = """
kind: Pod
metadata:
  labels: {team: vision}
spec:
  nodeSelector: {pool: train}
  tolerations:
  - {key: gpu, operator: Exists}
  volumes:
  - name: keys
    secret: {secretName: keys}
---
kind: Pod
metadata: {name: worker}
spec:
  containers:
  - resources:
      limits: {amd.com/gpu: 4}
    volumeMounts:
    - {name: keys, mountPath: /keys}
"""


@pytest.fixture
def patch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)

    def patch_file(text: str) -> str:
        Path("patch.yaml").write_text(text)
        return "patch.yaml"

    return patch_file


def _templates(value: Any) -> list[Manifest]:
    if isinstance(value, list):
        return [template for one in value for template in _templates(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value.get("spec", {}) else []
    return own + [template for one in value.values() for template in _templates(one)]


@pytest.mark.parametrize("kind", _KINDS)
def test_a_patch_adds_fields_to_the_pods_of_each_kind_and_keeps_theirs(
    make: Make,
    validate: Callable[[Manifest], None],
    patch_file: Callable[[str], str],
    kind: str,
) -> None:
    options = ["--kind", *kind.split(), "--num-instances=2", "--volume=data:/data", "--cpu=4"]
    documents = make(*options, "--evaluator", "--patch", patch_file(_PODS))
    for document in documents:
        validate(document)
    num_with_gpus = 0
    for template in _templates(documents):
        assert template["metadata"]["labels"]["team"] == "vision"
        assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "tfdist"
        pod = template["spec"]
        assert pod["nodeSelector"] == {"pool": "train"}
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        assert "keys" in [volume["name"] for volume in pod["volumes"]]
        [container] = pod["containers"]
        paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        if "amd.com/gpu" in container["resources"]["limits"]:
            num_with_gpus += 1
            assert container["resources"]["limits"] == {"cpu": "4", "amd.com/gpu": 4}
            assert paths == ["/dev/shm", "/data", "/keys"]
        else:
            assert "/keys" not in paths
    assert num_with_gpus == (2 if kind == "tfjob" else 1)


def test_a_manifest_is_changed_by_its_kind_and_name(
    make: Make, patch_file: Callable[[str], str]
) -> None:
    text = "kind: Job\nmetadata: {name: train, annotations: {a: b}}\nspec: {backoffLimit: null}\n"
    text += "---\nkind: Service\nspec: {ports: [{port: 2222, appProtocol: grpc}]}\n"
    _, service, workers, evaluator = make("--evaluator", "--patch", patch_file(text))
    assert workers["metadata"]["annotations"] == {"a": "b"}
    assert "annotations" not in evaluator["metadata"]
    [port] = service["spec"]["ports"]
    assert (port["appProtocol"], port["name"]) == ("grpc", "grpc")


def test_an_image_that_a_patch_sets_reaches_the_train_job(
    make: Make, patch_file: Callable[[str], str]
) -> None:
    text = "kind: Pod\nspec: {containers: [{image: other, env: [{name: A, value: b}]}]}"
    *_, job = make("--kind=trainjob", "--patch", patch_file(text))
    assert job["spec"]["trainer"]["image"] == "other"
    assert job["spec"]["trainer"]["env"][-1] == {"name": "A", "value": "b"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1}}, {"a": {"c": 2, "$patch": "replace"}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {}),
        ({"args": [1, 2]}, {"args": [3]}, {"args": [3]}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "value": "3"},
                    {"name": "C", "value": "4"},
                ]
            },
        ),
        (
            {"env": [{"name": "A"}, {"name": "B"}]},
            {"env": [{"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B"}]},
        ),
        (
            {"env": [{"name": "A"}]},
            {"env": [{"$patch": "replace"}, {"name": "C"}]},
            {"env": [{"name": "C"}]},
        ),
        # No key: `kubectl patch` replaces the list.
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, None),
    ],
)
def test_the_rules_are_those_of_strategic_merge(
    old: Manifest, new: Manifest, expected: Manifest | None
) -> None:
    before = repr(old)
    patch = Patch(file="f", kind="Job", name=None, changes=new)
    assert patched(old, patch) == (new if expected is None else expected)
    assert repr(old) == before


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("a: [", ["is not YAML"]),
        ("- a", ["a document without a kind", "kind: Pod"]),
        ("spec: {}", ["a document without a kind"]),
        ("kind: Pod\nmetadata: {name: workers}", ['"workers"', "worker, evaluator and launcher"]),
        ("kind: Pod\nmetadata: worker", ["metadata", '"worker"', "{name: worker}"]),
        ("kind: Pod\nspec: {$setElementOrder/env: []}", ["$setElementOrder", "$patch: delete"]),
        ("kind: Pod\nspec: {nodeSelektor: {}}", ["kind Pod", "nodeSelektor", "Fix"]),
        ("kind: Pod\nspec: {containers: 3}", ["kind Pod", 'containers is "3"', "a list", "Fix"]),
        ("kind: Pod\nspec: {volumes: [{secret: {}}]}", ["an item of volumes has no name"]),
        ("kind: Pod\nmetadata: {name: launcher}", ["no such pods, only worker"]),
        ("kind: Job\nspec: {completion: 3}", ["kind Job", "completion", "Fix"]),
        ("kind: Job\nmetadata: {name: x}", ["no such manifest", "NetworkPolicy train"]),
        ("kind: Job\napiVersion: batch/v2", ["batch/v2", "batch/v1"]),
    ],
)
def test_a_patch_that_cannot_work_is_refused_in_one_line(
    make: Make, patch_file: Callable[[str], str], text: str, parts: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        make("--patch", patch_file(text))
    message = str(caught.value)
    assert "\n" not in message
    for part in ["--patch", "patch.yaml", *parts]:
        assert part in message


def test_patches_of_the_pods_apply_to_the_runtime(
    make: Make, patch_file: Callable[[str], str]
) -> None:
    file = patch_file("kind: Pod\nspec: {nodeSelector: {a: b}}")
    with pytest.raises(UsageError, match="--patch with kind Pod has no effect with --runtime"):
        make("--kind=trainjob", "--runtime=tf", "--patch", file)
    [runtime] = make("--kind=trainjob", "--cluster-runtime", "--patch", file, command=())
    assert [one["spec"]["nodeSelector"] for one in _templates(runtime)] == [{"a": "b"}]


def test_patches_apply_in_their_order(patch_file: Callable[[str], str]) -> None:
    first, second = read_patches(patch_file("kind: Pod\n---\nkind: Job\n"))
    assert (first.kind, second.kind) == ("Pod", "Job")
