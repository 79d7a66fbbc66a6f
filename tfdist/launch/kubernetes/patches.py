"""Patches of `--patch FILE`: changes of manifests that no option makes, as strategic merge.

A file has one or more YAML documents. One of kind Pod changes the pods of the run: all of them, or,
with a name, those of one role.

    kind: Pod                       kind: Pod                     kind: Job
    spec:                           metadata:                     metadata:
      nodeSelector:                   name: worker                  annotations:
        pool: train                 spec:                             team: vision
      tolerations:                    containers:
      - key: gpu                      - resources:
        operator: Exists                  limits: {amd.com/gpu: 4}

Any other kind changes the manifests of that kind, or, with a name, one of them. The rules are those
of `kubectl patch` (kubernetes.io/docs/tasks/manage-kubernetes-objects): objects are merged, null
removes a field, a list whose items have a key is merged item by item, any other list is replaced,
and `$patch: replace` or `$patch: delete` replaces or removes an object or an item.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.errors import UsageError
from tfdist.launch.options.declaration import Value

Role = Literal["worker", "evaluator", "launcher"]
ROLES: tuple[Role, ...] = ("worker", "evaluator", "launcher")
_POD = "Pod"
_DIRECTIVE = "$patch"
# The key by which items of a list are the same: "patchMergeKey" in Kubernetes' API, and
# "x-kubernetes-list-map-keys" in JobSet's.
_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "replicatedJobs": "name",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One document of a patch file.

    Attributes:
      file: The file, for messages.
      kind: The kind that it changes.
      name: The name of the one manifest that it changes, or of the pods' role; None means all.
      changes: The document without its kind and name.
    """

    file: str
    kind: str
    name: str | None
    changes: Mapping[str, Any]

    def fits(self, document: Mapping[str, Any]) -> bool:
        """Returns whether it changes this manifest."""
        is_kind = document["kind"] == self.kind
        return is_kind and self.name in (None, document["metadata"]["name"])

    def fits_pods(self, role: Role) -> bool:
        """Returns whether it changes the pods of this role."""
        return self.kind == _POD and self.name in (None, role)

    def __str__(self) -> str:
        return f"--patch {self.file}: kind {self.kind}{f', name {self.name}' * bool(self.name)}"


def read_patches(text: str) -> tuple[Patch, ...]:
    """Reads a file of patches.

    Raises:
      ValueError: If it cannot be read, is not YAML, or a document has no kind.
    """
    import yaml  # A launcher without --patch does not need it.

    try:
        documents = list(yaml.safe_load_all(Path(text).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(
            f"got {shown(text)}, which cannot be read: {error.strerror}. Name a YAML file."
        ) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        first_line = " ".join(str(error).split())
        raise ValueError(
            f"got {shown(text)}, which is not YAML: {first_line[:200]}. Fix that."
        ) from None
    patches = tuple(_patch(text, one) for one in documents if one is not None)
    if not patches:
        raise ValueError(f"got {shown(text)}, which is empty. Write for example kind: Pod into it.")
    return patches


def _patch(file: str, document: Any) -> Patch:
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ValueError(
            f"got {shown(file)}, which has a document without a kind. "
            "Write kind: Pod for the pods, or the kind of a manifest."
        )
    changes = {name: value for name, value in document.items() if name not in ("kind", "metadata")}
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(
            f"got {shown(file)}, where metadata is {shown(str(metadata))}, allowed are fields such "
            "as name and labels. Write for example metadata: {name: worker}."
        )
    name = metadata.get("name")
    metadata = {field: value for field, value in metadata.items() if field != "name"}
    if document["kind"] == _POD and name not in (None, *ROLES):
        raise ValueError(
            f"got {shown(file)}, where a patch for pods has the name {shown(str(name))}, allowed "
            f"are {listed(ROLES)}. Write one of them, or no name for all pods."
        )
    if metadata:
        changes["metadata"] = metadata
    _check_directives(file, changes)
    return Patch(file=file, kind=document["kind"], name=name, changes=changes)


def _check_directives(file: str, value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _check_directives(file, one)
    elif isinstance(value, dict):
        for name, one in value.items():
            is_known = name == _DIRECTIVE and one in ("replace", "delete")
            if str(name).startswith("$") and not is_known:
                raise ValueError(
                    f"got {shown(file)}, which has {shown(f'{name}: {one}')}, allowed are "
                    "$patch: replace and $patch: delete. Write the list in full instead."
                )
            _check_directives(file, one)


PATCHES = Value(read_patches, "FILE")


def patched(document: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """Returns a manifest, or a pod's template, with the changes of a patch.

    Raises:
      UsageError: If an item of a list has no key, or a value stands for a list or an object.
    """
    changes = dict(patch.changes)
    containers = document.get("spec", {}).get("containers", ())
    if patch.kind == _POD and len(containers) == 1:
        changes = _with_names(changes, containers[0]["name"])
    try:
        changed: dict[str, Any] = _merged(document, changes)
    except ValueError as error:
        raise UsageError(f"{patch}: {error}. Fix this field.") from None
    return changed


def _with_names(changes: dict[str, Any], name: str) -> dict[str, Any]:
    """Names the containers of a patch that have no name: each pod of a run has one container."""
    spec = changes.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return changes
    containers = [
        {"name": name, **one} if isinstance(one, dict) and _DIRECTIVE not in one else one
        for one in spec["containers"]
    ]
    return {**changes, "spec": {**spec, "containers": containers}}


def _merged(old: Any, new: Any, name: str = "") -> Any:
    if isinstance(new, dict):
        return _merged_object(old if isinstance(old, dict) else {}, new)
    if isinstance(new, list) and (key := _key_of(name, new)):
        return _merged_items(old if isinstance(old, list) else [], new, key)
    if isinstance(old, list | dict) and not isinstance(new, type(old)):
        kind = "a list" if isinstance(old, list) else "an object"
        raise ValueError(f"{name} is {shown(str(new))}, and it must be {kind}")
    return copy.deepcopy(new)


def _merged_object(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    replaces = new.get(_DIRECTIVE) == "replace"
    result = {} if replaces else copy.deepcopy(dict(old))
    for name, value in new.items():
        if name == _DIRECTIVE:
            continue
        is_deleted = isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"
        if value is None or is_deleted:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value, name)
    return result


def _merged_items(old: Sequence[Any], new: Sequence[Any], key: str) -> list[Any]:
    replaces = any(item == {_DIRECTIVE: "replace"} for item in new)
    result = [] if replaces else copy.deepcopy(list(old))
    for item in new:
        if item == {_DIRECTIVE: "replace"}:
            continue
        places = [i for i, one in enumerate(result) if one.get(key) == item.get(key)]
        if item.get(_DIRECTIVE) == "delete":
            result = [one for i, one in enumerate(result) if i not in places]
        elif places:
            result[places[0]] = _merged_object(result[places[0]], item)
        else:
            result.append(_merged_object({}, item))
    return result


def _key_of(name: str, items: Sequence[Any]) -> str | None:
    """Returns the key of a list's items, or None if the list is replaced as a whole."""
    items = [one for one in items if one != {_DIRECTIVE: "replace"}]
    key = _KEYS.get(name)
    if name == "ports" and all(isinstance(one, dict) and "port" in one for one in items):
        key = "port"  # A Service's.
    if key is not None and not all(isinstance(one, dict) and key in one for one in items):
        raise ValueError(f"an item of {name} has no {key}, by which items are told apart")
    return key
