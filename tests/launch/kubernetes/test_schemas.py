"""Manifests, validated against the schemas that Kubernetes and Kubeflow publish."""

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

Manifest = dict[str, Any]
Make = Callable[..., list[Manifest]]
Validate = Callable[[Manifest], None]

_OPTION_SETS = {
    "smallest": "",
    "everything": "--num-instances=4 --num-replicas=8 --devices-per-replica=2 --evaluator=yes "
    "--namespace=team-a --cpu=32 --memory=200Gi --gpus=4 --shared-memory=10Gi --host-ipc=yes "
    "--env=LR=1e-3 --env=EMPTY= --secret-env=API_TOKEN=my-secret:token --volume=data:/mnt/data "
    "--volume=checkpoints:/mnt/checkpoints --max-restarts=3 --active-deadline=86400 --grace=120 "
    "--queue=gpu-queue --service-account=trainer --image-pull-secret=registry "
    "--image-pull-secret=other.registry",
    "little": "--shared-memory=none --network-policy=no --gpus=0",
    "root": "--run-as-user=0 --ipc-lock=yes",
}


@pytest.mark.parametrize("options", _OPTION_SETS)
def test_every_manifest_is_valid_under_its_schema(
    make: Make, validate: Validate, kind: list[str], options: str
) -> None:
    if options == "root":
        kind = kind[:2]  # The key that Trainer mounts for Horovod cannot be used by root.
    documents = make(*kind, *_OPTION_SETS[options].split())
    for document in documents:
        validate(document)
    assert documents


def test_a_typo_in_a_manifest_or_in_its_pods_is_refused(
    make: Make,
    validate: Validate,
    templates: Callable[[list[Manifest]], list[Manifest]],
    kind: list[str],
) -> None:
    for document in make(*kind, "--evaluator"):
        containers = [one["spec"]["containers"][0] for one in templates([document])]
        for place in (document["spec"], *containers):
            place["typo"] = 1
            with pytest.raises(jsonschema.ValidationError, match="typo"):
                validate(document)
            del place["typo"]
