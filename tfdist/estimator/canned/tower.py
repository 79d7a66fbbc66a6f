"""A canned estimator's model_fn: towers that give logits, a head, and an optimizer for each tower.

A tower is one way from features to logits (a linear model, a deep network, a bias). The logits of
all towers are added; the head makes loss, metrics and predictions of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.canned.optimizers import MakeOptimizer, is_v1
from tfdist.estimator.heads import arguments
from tfdist.estimator.spec import EstimatorSpec, ModeKeys


@dataclass(frozen=True, kw_only=True)
class Logits:
    """What a tower built in the current graph.

    Attributes:
      values: float32 [batch_size, logits_dimension].
      variables: What the tower's optimizer changes.
      updates: Ops to run with each step, as batch normalization has; None if such a tower never
        has any.
    """

    values: tf.Tensor
    variables: list[tf.Variable]
    updates: list[tf.Operation] | None = None


@dataclass(frozen=True, kw_only=True)
class Tower:
    """One way from features to logits, with its optimizer.

    Attributes:
      build: From (features, mode, logits_dimension) to `Logits`.
      make_optimizer: Gives the optimizer for the current graph.
    """

    build: Callable[[dict[str, Any], str, int], Logits]
    make_optimizer: MakeOptimizer


def make_model_fn(head: Any, towers: Sequence[Tower]) -> Callable[..., EstimatorSpec]:
    """Returns the model_fn of a canned estimator.

    Args:
      head: A head of `tfdist.estimator`, or an object with its `create_estimator_spec`.
      towers: At least one. The first one's optimizer increments the global step.
    """

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        check_features(features)
        built = [tower.build(features, mode, head.logits_dimension) for tower in towers]
        logits = built[0].values
        for other in built[1:]:
            logits = logits + other.values
        how: dict[str, Any] = {}
        if mode == ModeKeys.TRAIN:
            pairs = [(t.make_optimizer(), x) for t, x in zip(towers, built, strict=True)]
            how = _how_to_train(pairs, _is_mean(head))
        spec: EstimatorSpec = head.create_estimator_spec(
            features=features, mode=mode, labels=labels, logits=logits, **how
        )
        return spec

    return model_fn


def check_features(features: Any) -> None:
    """Refuses features that are not a dict.

    Raises:
      ValueError: If so.
    """
    if not isinstance(features, dict):
        raise ValueError(
            f"features should be a dictionary of `Tensor`s. Given type: {type(features)}. Return "
            'a dict such as {"name": tensor} from input_fn.'
        )


def _how_to_train(pairs: list[tuple[Any, Logits]], loss_is_mean: bool) -> dict[str, Any]:
    """Returns the arguments of `create_estimator_spec` that say how to train.

    Args:
      pairs: An optimizer for each tower's variables.
      loss_is_mean: Whether the loss is a mean over the batch, so that the workers' gradients are
        averaged.
    """
    global_step = v1.train.get_or_create_global_step()
    first, logits = pairs[0]
    if not is_v1(first):
        first.iterations = global_step
    if len(pairs) == 1:
        how = {"optimizer": first, "trainable_variables": logits.variables}
        return how if logits.updates is None else {**how, "update_ops": logits.updates}

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        ops: list[Any] = []
        for i, (optimizer, logits) in enumerate(pairs):
            if is_v1(optimizer):
                # It divides a mean loss by the number of workers itself.
                step = global_step if i == 0 else None
                ops.append(optimizer.minimize(loss, global_step=step, var_list=logits.variables))
            else:
                share = _share_of_worker(loss) if loss_is_mean else loss
                ops += optimizer.get_updates(share, logits.variables)
            ops += logits.updates or ()
        return tf.group(*ops)

    return {"train_op_fn": train_op_fn}


def _is_mean(head: Any) -> bool:
    return bool(getattr(head, "loss_reduction", arguments.MEAN) != arguments.SUM)


def _share_of_worker(loss: tf.Tensor) -> tf.Tensor:
    workers = tf.distribute.get_strategy().num_replicas_in_sync
    return loss / workers if workers > 1 else loss
