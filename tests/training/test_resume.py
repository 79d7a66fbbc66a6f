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
    "LAMB on halves": lambda rate: LAMB(rate),
    "LARS": lambda rate: LARS(rate, eeta=0.1, weight_decay=0.1, nesterov=True),
}


def _estimator(folder: Path, optimizer: str, seed: int = 1) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        start = np.linspace(-1, 1, 15, dtype="float32").reshape(5, 3)
        dtype = tf.bfloat16 if "halves" in optimizer else tf.float32
        weight = v1.get_variable("weight", initializer=tf.constant(start, dtype))
        bias = v1.get_variable("bias", initializer=tf.zeros([3]))
        loss = tf.reduce_mean(
            tf.square(tf.matmul(features, tf.cast(weight, tf.float32)) + bias - 1.0)
        )
        rate = warmup(cosine_decay(0.1, STEPS), 3)
        chosen = ClippedOptimizer(OPTIMIZERS[optimizer](rate), global_norm=0.5)
        train_op = chosen.minimize(loss, global_step=v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    return tfe.Estimator(model_fn, folder, tfe.RunConfig(tf_random_seed=seed))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    def input_fn(first_step: int) -> Any:
        return lambda: tf.data.Dataset.from_tensor_slices(X[first_step * 4 :]).batch(4)

    undisturbed = _estimator(tmp_path / "undisturbed", optimizer)
    undisturbed.train(input_fn(0), max_steps=STEPS)
    _estimator(tmp_path / "stopped", optimizer).train(input_fn(0), max_steps=STOP)
    resumed = _estimator(tmp_path / "stopped", optimizer, seed=2)  # The checkpoint has the first.
    resumed.train(input_fn(STOP), max_steps=STEPS)
    names = undisturbed.get_variable_names()
    assert names == resumed.get_variable_names()
    for name in names:
        one, other = (e.get_variable_value(name) for e in (undisturbed, resumed))
        np.testing.assert_array_equal(one, other, err_msg=name)
