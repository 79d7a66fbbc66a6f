"""Manifests, validated against the schemas that Kubernetes and Kubeflow publish."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]
Validate = Callable[[Manifest], None]

_KINDS = ("job", "tfjob", "mpijob", "trainjob", "trainjob --engine=horovod")
_OPTION_SETS = {
    "smallest": "",
    "everything": "--num-instances=4 --num-replicas=8 --devices-per-replica=2 --evaluator=yes "
    "--namespace=team-a --cpu=32 --memory=200Gi --gpus=4 --shared-memory=10Gi --host-ipc=yes "
    "--env=LR=1e-3 --env=EMPTY= --secret-env=API_TOKEN=my-secret:token --volume=data:/mnt/data "
    "--volume=checkpoints:/mnt/checkpoints --max-restarts=3 --active-deadline=86400 --grace=120 "
    "--queue=gpu-queue --service-account=trainer --image-pull-secret=registry "
    "--image-pull-secret=other.registry",
    "little": "--shared-memory=none --network-policy=no --gpus=0",
}
_ALL = [
    (*kind.split(), *options.split()) for kind in _KINDS for options in _OPTION_SETS.values()
] + [(kind, "--run-as-user=0", "--ipc-lock=yes") for kind in _KINDS[:4]]


def _ids(options: tuple[str, ...]) -> str:
    return " ".join(options[:3])


@pytest.mark.parametrize("options", _ALL, ids=_ids)
def test_every_manifest_is_valid_under_its_schema(
    make: Make, validate: Validate, options: tuple[str, ...]
) -> None:
    documents = make("--kind", *options)
    for document in documents:
        validate(document)
    assert documents


def test_a_typo_anywhere_in_a_manifest_is_refused(make: Make, validate: Validate) -> None:
    documents = {
        document["kind"]: document
        for kind in _KINDS
        for document in make("--kind", *kind.split(), "--evaluator", "--max-restarts=1")
    }
    tried = set()
    for document in documents.values():
        for place in _places(document):
            names = tuple(step for step in place if isinstance(step, str))[-1:]
            if names in tried:
                continue
            tried.add(names)
            with pytest.raises(jsonschema.ValidationError, match="typo"):
                validate(_with_a_typo(document, place))
    assert len(tried) > 30


@pytest.mark.parametrize("name", ["nodes", "restartPolice", "replicas"])
def test_an_unknown_field_of_a_train_job_is_refused(
    make: Make, validate: Validate, name: str
) -> None:
    *_, job = make("--kind=trainjob")
    job["spec"]["trainer"][name] = 2
    with pytest.raises(jsonschema.ValidationError, match=name):
        validate(job)


def _places(document: Manifest) -> Iterator[tuple[Any, ...]]:
    """Yields the path to each object in the manifest whose fields are fixed by the schema."""
    free = ("labels", "limits", "requests", "matchLabels", "selector")
    free += ("metadata", "mpiReplicaSpecs", "tfReplicaSpecs")

    def walk(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, list):
            for index, one in enumerate(value):
                yield from walk(one, (*way, index))
        elif isinstance(value, dict):
            if not way or way[-1] not in free:
                yield way
            for name, one in value.items():
                yield from walk(one, (*way, name))

    return walk(document, ())


def _with_a_typo(document: Manifest, way: tuple[Any, ...]) -> Manifest:
    spoilt = copy.deepcopy(document)
    place = spoilt
    for step in way:
        place = place[step]
    place["typo"] = 1
    return spoilt
