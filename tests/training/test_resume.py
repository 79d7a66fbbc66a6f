"""A training that stops and goes on ends with the bits of one that did not stop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.training import LAMB, LARS, ClippedOptimizer, cosine_decay, warmup

STEPS, STOP = 6, 2
X = np.random.default_rng(0).normal(size=(STEPS * 4, 5)).astype("float32")

OPTIMIZERS = {
    "LAMB": lambda rate: LAMB(rate, weight_decay=0.1),
    "LARS": lambda rate: LARS(rate, eeta=0.1, weight_decay=0.1, nesterov=True),
}
CASES = [("LARS", "float32"), ("LAMB", "bfloat16"), ("LAMB", "mixed_float16")]


def _estimator(folder: Path, optimizer: str, precision: str, seed: int = 1) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        start = np.linspace(-1, 1, 15, dtype="float32").reshape(5, 3)
        weight = v1.get_variable("weight", initializer=tf.constant(start))
        bias = v1.get_variable("bias", initializer=tf.zeros([3]))
        loss = tf.reduce_mean(
            tf.square(
                tf.matmul(features, tf.cast(weight, tf.float32)) + tf.cast(bias, tf.float32) - 1
            )
        )
        rate = warmup(cosine_decay(0.1, STEPS), 3)
        chosen = ClippedOptimizer(OPTIMIZERS[optimizer](rate), global_norm=0.5)
        train_op = chosen.minimize(loss, global_step=v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    device = tfe.DeviceConfig(precision=precision)
    return tfe.Estimator(model_fn, folder, tfe.RunConfig(tf_random_seed=seed, device=device))


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, case: tuple[str, str]) -> None:
    def input_fn(first_step: int) -> Any:
        return lambda: tf.data.Dataset.from_tensor_slices(X[first_step * 4 :]).batch(4)

    undisturbed = _estimator(tmp_path / "undisturbed", *case)
    undisturbed.train(input_fn(0), max_steps=STEPS)
    _estimator(tmp_path / "stopped", *case).train(input_fn(0), max_steps=STOP)
    resumed = _estimator(tmp_path / "stopped", *case, seed=2)  # The checkpoint has the first.
    resumed.train(input_fn(STOP), max_steps=STEPS)
    names = undisturbed.get_variable_names()
    assert names == resumed.get_variable_names()
    for name in names:
        one, other = (e.get_variable_value(name) for e in (undisturbed, resumed))
        np.testing.assert_array_equal(one, other, err_msg=name)
