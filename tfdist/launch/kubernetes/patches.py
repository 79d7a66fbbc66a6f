"""Patches of `--patch FILE`: changes of manifests that no option makes, as JSON merge patches.

A file has one or more YAML documents. One of kind Pod changes the pods of the run, one of kind
Container the container of each pod: all of them, or, with a name, those of one role.

    kind: Pod                       kind: Container               kind: Job
    spec:                           metadata:                     metadata:
      nodeSelector:                   name: worker                  annotations:
        pool: train                 resources:                        team: vision
      tolerations:                    limits: {amd.com/gpu: 4}
      - key: gpu
        operator: Exists

Any other kind changes the manifests of that kind, or, with a name, one of them. The rules are those
of RFC 7396: objects are merged, null removes a field, and anything else is replaced. So that no
patch drops what a run needs, a list that has items already cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.errors import UsageError
from tfdist.launch.options.declaration import Value

Role = Literal["worker", "evaluator", "launcher"]
ROLES: tuple[Role, ...] = ("worker", "evaluator", "launcher")
POD, CONTAINER = "Pod", "Container"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One document of a patch file.

    Attributes:
      name: The name of the one manifest that it changes, or of the pods' role; None means all.
      changes: The document without its kind and name.
    """

    file: str
    kind: str
    name: str | None
    changes: Mapping[str, Any]

    def fits(self, document: Mapping[str, Any]) -> bool:
        is_kind = document["kind"] == self.kind
        return is_kind and self.name in (None, document["metadata"]["name"])

    @property
    def is_of_pods(self) -> bool:
        """True where it changes pods, whatever manifest they are in."""
        return self.kind in (POD, CONTAINER)

    def fits_pods(self, role: Role) -> bool:
        return self.is_of_pods and self.name in (None, role)

    def __str__(self) -> str:
        return f"--patch {self.file}: kind {self.kind}{f', name {self.name}' * bool(self.name)}"


def read_patches(text: str) -> tuple[Patch, ...]:
    """Reads a file of patches; a ValueError if it is no YAML, or a document has no kind."""
    import yaml  # A launcher without --patch does not need it.

    try:
        documents = list(yaml.safe_load_all(Path(text).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(
            f"got {shown(text)}, which cannot be read: {error.strerror}. Name a YAML file."
        ) from None
    # ValueError: of bytes that are not UTF-8, or of a date that is none.
    except (ValueError, RecursionError, yaml.YAMLError) as error:
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
    if document["kind"] in (POD, CONTAINER) and name not in (None, *ROLES):
        raise ValueError(
            f"got {shown(file)}, where a patch for pods has the name {shown(str(name))}, allowed "
            f"are {listed(ROLES)}. Write one of them, or no name for all pods."
        )
    if metadata:
        changes["metadata"] = metadata
    _check_directives(file, changes)
    return Patch(file=file, kind=document["kind"], name=name, changes=changes)


def _check_directives(file: str, value: Any) -> None:
    """Refuses the directives of a strategic merge, which would become fields here."""
    if isinstance(value, dict):
        for name, one in value.items():
            if str(name).startswith("$"):
                raise ValueError(
                    f"got {shown(file)}, which has {shown(str(name))}, a directive of strategic "
                    "merges, and this is a JSON merge patch. Write null to remove a field."
                )
            _check_directives(file, one)


PATCHES = Value(read_patches, "FILE")


def patched(document: Mapping[str, Any], patch: Patch) -> dict[str, Any]:
    """Returns a manifest, a pod's template or a container with the changes of a patch.

    A patch that would replace a list with items is a UsageError.
    """
    try:
        changed: dict[str, Any] = merged(document, patch.changes)
    except ValueError as error:
        raise UsageError(
            f"{patch}: {error} has items already, and a merge patch replaces lists whole. Use an "
            "option of tfdist, or change the file of --output with kubectl kustomize."
        ) from None
    return changed


def merged(old: Any, new: Any, place: str = "") -> Any:
    """Merges by the rules of RFC 7396 (JSON merge patch); neither argument is changed.

    A list that would replace one with items is a ValueError, whose message is its place.
    """
    if isinstance(new, list) and isinstance(old, list) and old:
        raise ValueError(place.removeprefix("."))
    if not isinstance(new, Mapping):
        return new
    result = {**old} if isinstance(old, Mapping) else {}
    for name, value in new.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value, f"{place}.{name}")
    return result
