"""Manifests, validated against the schemas that Kubernetes and Kubeflow publish."""

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


@pytest.mark.parametrize("kind", _KINDS)
def test_a_typo_in_a_manifest_or_in_its_pods_is_refused(
    make: Make, validate: Validate, kind: str
) -> None:
    for document in make("--kind", *kind.split(), "--evaluator"):
        for place in (document["spec"], *_containers(document)):
            place["typo"] = 1
            with pytest.raises(jsonschema.ValidationError, match="typo"):
                validate(document)
            del place["typo"]


def _containers(value: Any) -> Iterator[Manifest]:
    """Yields each container at any depth."""
    if isinstance(value, dict):
        yield from value.get("containers", ())
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            yield from _containers(one)


@pytest.mark.parametrize("name", ["nodes", "restartPolice", "replicas"])
def test_an_unknown_field_of_a_train_job_is_refused(
    make: Make, validate: Validate, name: str
) -> None:
    *_, job = make("--kind=trainjob")
    job["spec"]["trainer"][name] = 2
    with pytest.raises(jsonschema.ValidationError, match=name):
        validate(job)
