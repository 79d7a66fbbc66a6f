"""`MultiHead`, which trains several heads of one model together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tf_keras.metrics import Mean

from tfdist.estimator.export.outputs import PredictOutput
from tfdist.estimator.heads.head import (
    REGULARIZATION_LOSS,
    Head,
    Metrics,
    SpecHead,
    add_regularization,
    selected,
)
from tfdist.estimator.spec import EstimatorSpec, ModeKeys

_DEFAULT = v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class MultiHead(SpecHead):
    """A head that adds up the losses of several heads.

    Logits are a dict by head name, or one tensor [D0, D1, ... DN, sum of the heads' dimensions].
    A single tensor is split in the order of the heads. Labels are a dict by head name. Keys of
    predictions are (head name, key). Names of metrics have the suffix "/<head name>". The first
    head's output is the default for serving.

    Args:
      heads: List or tuple of heads. Each must have a name.
      head_weights: For each head, a number by which its loss is multiplied. None means 1.

    Raises:
      ValueError: If there is no head, a head has no name or that of another one, or the number of
        weights differs from the number of heads.
    """

    _default_scope = "multi_head"

    def __init__(self, heads: Sequence[Head], head_weights: Sequence[float] | None = None) -> None:
        if not heads:
            raise ValueError(f"Must specify heads. Given: {heads}")
        if head_weights and len(head_weights) != len(heads):
            raise ValueError(
                "heads and head_weights must have the same size. Given len(heads): "
                f"{len(heads)}. Given len(head_weights): {len(head_weights)}."
            )
        for head in heads:
            if head.name is None:
                raise ValueError(f"All given heads must have name specified. Given: {head}")
        names = [str(head.name) for head in heads]
        if len(set(names)) < len(names):
            raise ValueError(f"The names of heads must differ. Given: {names}")
        self._heads = dict(zip(names, heads, strict=True))
        self._weights = tuple(head_weights) if head_weights else None

    @property
    def name(self) -> str:
        return "_".join(self._heads)

    @property
    def logits_dimension(self) -> Any:
        return sum(head.logits_dimension for head in self._heads.values())

    @property
    def loss_reduction(self) -> str:
        reductions = [head.loss_reduction for head in self._heads.values()]
        if len(set(reductions)) > 1:
            raise ValueError(
                f"The loss_reduction must be the same for different heads. Given: {reductions}"
            )
        return reductions[0]

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> tf.Tensor:
        parts = self._parts(logits, labels)
        losses = [
            head.loss(
                labels=labels[name] if labels else None,
                logits=parts[name],
                features=features,
                mode=mode,
            )
            for name, head in self._heads.items()
        ]
        with v1.name_scope("merge_losses", values=losses):
            if self._weights is not None:
                losses = [loss * w for loss, w in zip(losses, self._weights, strict=True)]
            return add_regularization(tf.add_n(losses), regularization_losses)  # []

    def predictions(self, logits: Any, keys: Sequence[Any] | None = None) -> dict[Any, Any]:
        parts = self._parts(logits)
        with v1.name_scope("merge_pred"):
            merged = {
                (name, key): value
                for name, head in self._heads.items()
                for key, value in head.predictions(logits=parts[name]).items()
            }
        return selected(merged, keys)

    def metrics(self, regularization_losses: Sequence[tf.Tensor] | None = None) -> Metrics:
        metrics: Metrics = {}
        if regularization_losses is not None:
            metrics[self._summary_key(REGULARIZATION_LOSS)] = Mean(name=REGULARIZATION_LOSS)
        with v1.name_scope("merge_eval"):
            # The metrics of each head are made in `update_metrics`.
            metrics.update({f"loss/{name}": Mean(name=f"loss/{name}") for name in self._heads})
        return metrics

    def update_metrics(  # type: ignore[override]
        self,
        eval_metrics: Metrics,
        features: Any,
        logits: Any,
        labels: Any,
        regularization_losses: Sequence[tf.Tensor] | None = None,
    ) -> Metrics:
        parts = self._parts(logits, labels)
        if regularization_losses is not None:
            total = tf.add_n(regularization_losses)  # []
            eval_metrics[self._summary_key(REGULARIZATION_LOSS)].update_state(total)
        for name, head in self._heads.items():
            loss = head.loss(logits=parts[name], labels=labels[name], features=features)
            eval_metrics[f"loss/{name}"].update_state(loss)
            own = head.update_metrics(head.metrics(), features, parts[name], labels[name])
            eval_metrics.update(own or {})
        return eval_metrics

    def _outputs_to_serve(
        self, predictions: dict[Any, Any], features: Any, logits: Any, labels: Any
    ) -> dict[str, Any]:
        return _merged_outputs(self._specs(features, ModeKeys.PREDICT, logits, labels))

    def _begin_training(self, features: Any, mode: str, logits: Any, labels: Any) -> None:
        if mode != ModeKeys.TRAIN:
            raise ValueError(f"mode={mode} unrecognized. Use ModeKeys.TRAIN, EVAL or PREDICT.")
        self._specs(features, mode, logits, labels)  # Writes the summaries of each head.

    def _loss_key(self, key: str) -> str:
        return key

    def _specs(self, features: Any, mode: str, logits: Any, labels: Any) -> dict[str, Any]:
        """Returns the spec of each head by name; its train op does nothing."""
        parts = self._parts(logits, labels)
        return {
            name: head.create_estimator_spec(
                features=features,
                mode=mode,
                logits=parts[name],
                labels=labels[name] if labels else None,
                train_op_fn=lambda loss: tf.no_op(),
            )
            for name, head in self._heads.items()
        }

    def _parts(self, logits: Any, labels: Any = None) -> dict[str, Any]:
        """Returns the logits of each head by name.

        Raises:
          ValueError: If the logits or labels of a head are missing, or a single logits tensor has
            another size than all heads together.
        """
        if labels is not None:
            if not isinstance(labels, dict):
                raise ValueError(f"labels must be a dict. Given: {labels}")
            self._check_names("labels", labels)
        if isinstance(logits, dict):
            self._check_names("logits", logits)
            return logits
        sizes = [head.logits_dimension for head in self._heads.values()]
        with v1.name_scope("split_logits", values=[logits]):
            logits = tf.convert_to_tensor(logits)
            if logits.shape.as_list()[-1] not in (None, sum(sizes)):
                raise ValueError(
                    f"Could not split logits of shape {logits.shape} among the heads with "
                    f"individual logits dimensions: {sizes}. The last dimension should equal "
                    f"{sum(sizes)}."
                )
            # Each part: [D0, D1, ... DN, the head's logits_dimension]
            return dict(zip(self._heads, tf.split(logits, sizes, axis=-1), strict=True))

    def _check_names(self, noun: str, values: dict[str, Any]) -> None:
        missing = [name for name in self._heads if name not in values]
        if missing:
            raise ValueError(f"{noun} has missing values for head(s): {missing}")


def _merged_outputs(specs: dict[str, EstimatorSpec]) -> dict[str, Any]:
    """Returns the export outputs of all heads, from their specs in PREDICT by head name.

    Each output is named after its head. "predict" has the predictions of all heads, and the
    default output is that of the first head.
    """
    merged: dict[str, Any] = {}
    predictions: dict[str, Any] = {}
    for name, spec in specs.items():
        outputs = spec.export_outputs
        merged.setdefault(_DEFAULT, _default_output(name, outputs))
        for key, output in outputs.items():
            merged[name if key == _DEFAULT else f"{name}/{key}"] = output
        if isinstance(outputs.get("predict"), PredictOutput):
            for key, value in outputs["predict"].outputs.items():
                predictions[f"{name}/{key}"] = value
    return {**merged, "predict": PredictOutput(predictions)}


def _default_output(name: str, outputs: dict[str, Any]) -> Any:
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    if _DEFAULT not in outputs:
        raise ValueError(
            f"{name} did not specify default export_outputs. Given: {outputs} Suggested fix: "
            f"include key {_DEFAULT} in export_outputs."
        )
    return outputs[_DEFAULT]
