"""Manifests, read by the typed models of the package kubeflow-trainer-api."""

from __future__ import annotations

from typing import Any

from kubeflow_trainer_api import models


def checked(model: str, document: dict[str, Any]) -> dict[str, Any]:
    """Returns the document, after the model of that name has read all of it.

    The models refuse a wrong type, but pass over a field that they do not know. So what they have
    read is compared with what there was.

    Args:
      model: The name of a class in `kubeflow_trainer_api.models`.
      document: A manifest, or the part of one that the class describes.

    Raises:
      ValueError: If the model does not know a field, or its value is of another type.
    """
    unlike = _first_difference(document, getattr(models, model).from_dict(document).to_dict())
    if unlike is not None:
        raise ValueError(f"{model} has no such field or value: {unlike}")
    return document


def _first_difference(written: Any, read: Any, place: str = "") -> str | None:
    if isinstance(written, dict) and isinstance(read, dict):
        names = [*written, *(read.keys() - written.keys())]
        pairs = [(written.get(name), read.get(name), f"{place}.{name}") for name in names]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = [(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(written, read, strict=True))]
    else:
        return None if written == read else f"{place} = {written!r}"
    return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
