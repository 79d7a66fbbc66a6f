"""Signatures of an exported model, the named functions that a caller can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.export.outputs import EVAL_METHOD_NAME, TRAIN_METHOD_NAME, ExportOutput

_DEFAULT = v1.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY

_KINDS = {
    v1.saved_model.CLASSIFY_METHOD_NAME: "Classify",
    v1.saved_model.REGRESS_METHOD_NAME: "Regress",
    v1.saved_model.PREDICT_METHOD_NAME: "Predict",
    TRAIN_METHOD_NAME: "Train",
    EVAL_METHOD_NAME: "Eval",
}


def build_signatures(
    receiver_tensors: Mapping[str, tf.Tensor],
    export_outputs: Mapping[str, ExportOutput],
    alternatives: Mapping[str, Mapping[str, Any]] | None,
    *,
    serving_only: bool,
) -> dict[str, Any]:
    """Builds a signature for each output and each set of inputs, in the current graph.

    A signature that cannot be built, or that needs a placeholder that is not among its inputs, is
    left out. The log names it and the reason.

    Args:
      receiver_tensors: The default inputs. Their signatures have the names of the outputs.
      export_outputs: Outputs by name.
      alternatives: Alternative inputs by name. Their signatures are named "<alternative>:<output>".
      serving_only: Whether to leave out signatures that TensorFlow Serving does not support.
    """
    signatures: dict[str, Any] = {}
    excluded: dict[str, str] = {}
    ways = {"": receiver_tensors}
    ways.update({f"{name or 'None'}:": fed for name, fed in (alternatives or {}).items()})
    for prefix, fed in ways.items():
        for key, output in export_outputs.items():
            name = f"{prefix}{key or 'None'}"
            try:
                signature = output.as_signature_def(fed)
                _check_is_fed(signature)
                signatures[name] = signature
            except ValueError as error:
                excluded[name] = str(error)
    _log(signatures, excluded)
    if serving_only:
        is_valid = v1.saved_model.is_valid_signature
        signatures = {name: s for name, s in signatures.items() if is_valid(s)}
    return signatures


def _check_is_fed(signature: Any) -> None:
    """Raises ValueError if the signature's outputs need a placeholder that is no input."""
    graph = v1.get_default_graph()

    def tensors(infos: Mapping[str, Any]) -> list[tf.Tensor]:
        return [graph.get_tensor_by_name(n) for info in infos.values() for n in _names_in(info)]

    fed = {tensor.name for tensor in tensors(signature.inputs)}
    waiting = tensors(signature.outputs)
    seen = set(fed)
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if tensor.op.type == "Placeholder":
            raise ValueError(
                f"The signature's inputs {sorted(fed)} are insufficient to compute its outputs "
                f"{sorted(signature.outputs)}: these need {tensor.name!r} as well, which is not "
                "given as a signature input."
            )
        waiting.extend(tensor.op.inputs)


def _names_in(info: Any) -> Iterator[str]:
    """Yields the names of the dense tensors of a TensorInfo proto."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        sparse = info.coo_sparse
        yield from (
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
    elif kind == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _names_in(component)
    else:
        yield info.name


def _log(signatures: Mapping[str, Any], excluded: Mapping[str, str]) -> None:
    by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS.values()}
    for name, signature in signatures.items():
        kind = _KINDS.get(signature.method_name, signature.method_name)
        by_kind.setdefault(kind, []).append(name)
    for kind, names in by_kind.items():
        v1.logging.info("Signatures INCLUDED in export for %s: %s", kind, names or "None")
    if excluded:
        v1.logging.info(
            "Signatures EXCLUDED from export because they cannot be served via TensorFlow "
            "Serving APIs:"
        )
        for name, reason in excluded.items():
            v1.logging.info("'%s' : %s", name, reason)
    if not signatures:
        v1.logging.warning("Export includes no signatures!")
    elif _DEFAULT not in signatures:
        v1.logging.warning("Export includes no default signature!")
