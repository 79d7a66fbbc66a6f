"""`--patch FILE`: JSON merge patches of the pods of each kind, and of whole manifests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.patches import merged, read_patches

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]

# Fields that no option sets, in one file.
_PODS = """
kind: Pod
metadata:
  labels: {team: vision}
spec:
  nodeSelector: {pool: train}
  tolerations:
  - {key: gpu, operator: Exists}
---
kind: Container
metadata: {name: worker}
resources:
  limits: {amd.com/gpu: 4}
imagePullPolicy: Always
"""


@pytest.fixture
def patch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)

    def patch_file(text: str) -> str:
        Path("patch.yaml").write_text(text)
        return "patch.yaml"

    return patch_file


def test_a_patch_adds_fields_to_the_pods_of_each_kind_and_keeps_theirs(
    make: Make,
    validate: Callable[[Manifest], None],
    patch_file: Callable[[str], str],
    templates: Callable[[list[Manifest]], list[Manifest]],
    kind: list[str],
) -> None:
    options = ["--num-instances=2", "--volume=data:/data", "--cpu=4", "--evaluator"]
    documents = make(*kind, *options, "--patch", patch_file(_PODS))
    for document in documents:
        validate(document)
    num_with_gpus = 0
    for template in templates(documents):
        assert template["metadata"]["labels"]["team"] == "vision"
        assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "tfdist"
        pod = template["spec"]
        assert pod["nodeSelector"] == {"pool": "train"}
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        [container] = pod["containers"]
        if "imagePullPolicy" in container:
            num_with_gpus += 1
            assert container["resources"]["limits"] == {"cpu": "4", "amd.com/gpu": 4}
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert paths == ["/dev/shm", "/data"]
        else:
            assert "amd.com/gpu" not in container["resources"]["limits"]
    assert num_with_gpus == (2 if "tfjob" in kind else 1)


def test_a_manifest_is_changed_by_its_kind_and_name(
    make: Make, patch_file: Callable[[str], str]
) -> None:
    text = "kind: Job\nmetadata: {name: train, annotations: {a: b}}\nspec: {backoffLimit: null}\n"
    text += "---\nkind: Service\nspec: {clusterIP: null}\n"
    _, service, workers, evaluator = make("--evaluator", "--patch", patch_file(text))
    assert workers["metadata"]["annotations"] == {"a": "b"}
    assert "annotations" not in evaluator["metadata"]
    assert "clusterIP" not in service["spec"] and service["spec"]["ports"]


def test_an_image_that_a_patch_sets_reaches_the_train_job(
    make: Make, patch_file: Callable[[str], str]
) -> None:
    *_, job = make("--kind=trainjob", "--patch", patch_file("kind: Container\nimage: other"))
    assert job["spec"]["trainer"]["image"] == "other"


# The first ones are examples of RFC 7396, appendix A.
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
        ({}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"args": [1, 2]}, {"args": None}, {}),
    ],
)
def test_the_rules_are_those_of_a_json_merge_patch(
    old: Manifest, new: Manifest, expected: Manifest
) -> None:
    before = repr(old)
    assert merged(old, new) == expected
    assert repr(old) == before


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("a: [", ["is not YAML"]),
        ("kind: Pod\nspec: {a: 2001-99-99}", ["is not YAML", "month"]),
        ("[" * 5000, ["is not YAML"]),
        ("- a", ["a document without a kind", "kind: Pod"]),
        ("spec: {}", ["a document without a kind"]),
        ("kind: Pod\nmetadata: {name: workers}", ['"workers"', "worker, evaluator and launcher"]),
        ("kind: Pod\nmetadata: worker", ["metadata", '"worker"', "{name: worker}"]),
        ("kind: Pod\nspec: {$patch: replace}", ["$patch", "a JSON merge patch", "Write null"]),
        ("kind: Pod\nspec: {nodeSelektor: {}}", ["kind Pod", "nodeSelektor", "Fix"]),
        ("kind: Pod\nspec: {containers: 3}", ["kind Pod", "Fix"]),
        ("kind: Pod\nspec: {volumes: [{name: a}]}", ["spec.volumes has items", "--output"]),
        ("kind: Container\nenv: [{name: A}]", ["kind Container", "env has items", "kustomize"]),
        ("kind: Container\nmetadata: {labels: {a: b}}", ["kind Container", "metadata", "Fix"]),
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
    make: Make,
    patch_file: Callable[[str], str],
    templates: Callable[[list[Manifest]], list[Manifest]],
) -> None:
    file = patch_file("kind: Pod\nspec: {nodeSelector: {a: b}}")
    with pytest.raises(UsageError, match="--patch with kind Pod or Container has no effect with"):
        make("--kind=trainjob", "--runtime=tf", "--patch", file)
    runtime = make("--kind=trainjob", "--cluster-runtime", "--patch", file, command=())
    assert [one["spec"]["nodeSelector"] for one in templates(runtime)] == [{"a": "b"}]


def test_patches_apply_in_their_order(patch_file: Callable[[str], str]) -> None:
    first, second = read_patches(patch_file("kind: Pod\n---\nkind: Job\n"))
    assert (first.kind, second.kind) == ("Pod", "Job")
