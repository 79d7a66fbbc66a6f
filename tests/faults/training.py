"""A small training of an Estimator that the tests of faults start; `fate` says how."""

import sys
from typing import Any

from fate import (
    MIDDLE,
    NUM_STEPS,
    SAVE_STEPS,
    index,
    is_victim,
    model_dir,
    moment,
    suffer,
    suffer_in_a_save,
)

if moment == "start":
    suffer()

# TensorFlow does without these, and starts faster.
sys.modules.update(dict.fromkeys(("h5py", "pandas", "PIL", "scipy")))

import tensorflow as tf  # noqa: E402
import tensorflow.compat.v1 as v1  # noqa: E402

import tfdist.estimator as tfe  # noqa: E402
from tfdist.strategies import strategy_for_run  # noqa: E402

v1.logging.set_verbosity(v1.logging.INFO)


def input_fn(input_context: Any = None) -> Any:
    dataset = tf.data.Dataset.range(1_000)
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.map(lambda i: tf.cast(i % 7, tf.float32)[None]).repeat().batch(4)


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    if moment == "model":
        suffer()
    weights = v1.get_variable("weights", [1, 5_000], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - 1.0))
    optimizer = v1.train.MomentumOptimizer(0.001, 0.9)
    [(gradient, _)] = optimizer.compute_gradients(loss, [weights])

    def apply_on_host(gradient: Any) -> Any:
        return optimizer.apply_gradients([(gradient, weights)])

    return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, [gradient]))


class Fate(v1.train.SessionRunHook):
    def before_run(self, run_context: Any) -> None:
        step = run_context.session.run(v1.train.get_global_step()) if is_victim else -1
        if (moment == "first step" and step == 0) or (moment == "middle" and step == MIDDLE):
            suffer()

    def end(self, session: Any) -> None:
        if moment == "end":
            suffer()


class Saving(v1.train.CheckpointSaverListener):
    def before_save(self, session: Any, global_step_value: int) -> None:
        if moment != "saving" or global_step_value != 2 * SAVE_STEPS:
            return
        suffer_in_a_save(f"model.ckpt-{2 * SAVE_STEPS}*")


strategy = strategy_for_run()
config = tfe.RunConfig(
    train_distribute=strategy, save_checkpoints_steps=SAVE_STEPS, log_step_count_steps=10
)
own_dir = model_dir if index == 0 else f"{model_dir}.{index}"
estimator = tfe.Estimator(model_fn, own_dir, config)
estimator.train(input_fn, max_steps=NUM_STEPS, hooks=[Fate()], saving_listeners=[Saving()])
print("trained to the end", flush=True)
