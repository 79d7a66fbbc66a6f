"""A small training by a loop of one's own that the tests of faults start; `fate` says how."""

from typing import Any

from fate import (
    MIDDLE,
    NUM_STEPS,
    SAVE_STEPS,
    fault,
    index,
    model_dir,
    moment,
    suffer,
    suffer_in_a_save,
)

if moment == "start":
    suffer()

import tensorflow as tf

from tfdist.strategies import strategy_for_run

strategy = strategy_for_run()
with strategy.scope():
    weights = tf.Variable(tf.zeros([5_000]), aggregation=tf.VariableAggregation.MEAN)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
rows = tf.data.Dataset.range(8).map(lambda n: tf.cast(n, tf.float32)).batch(8).repeat()
batches = iter(strategy.experimental_distribute_dataset(rows))
manager = tf.train.CheckpointManager(
    tf.train.Checkpoint(weights=weights, step=step), model_dir, max_to_keep=2
)
if manager.latest_checkpoint:
    manager.checkpoint.restore(manager.latest_checkpoint)


def replica_step(batch: tf.Tensor) -> None:
    own = tf.reduce_sum(batch) * (1.0 - weights) / 28
    weights.assign_add(0.1 * tf.distribute.get_replica_context().all_reduce("SUM", own))


@tf.function
def train_step(batch: Any) -> None:
    strategy.run(replica_step, args=(batch,))


def save() -> None:
    if moment == "saving" and int(step) == 2 * SAVE_STEPS and index == 0:
        suffer_in_a_save(f"ckpt-{2 * SAVE_STEPS}*")
    if strategy.extended.should_checkpoint:
        print(f"Saving checkpoints for {int(step)}", flush=True)
        manager.save(checkpoint_number=int(step))


if moment == "model":
    suffer()
try:
    while step < NUM_STEPS:
        if int(step) == {"first step": 0, "middle": MIDDLE}.get(moment):
            suffer()
        train_step(next(batches))
        step.assign_add(1)
        if int(step) % SAVE_STEPS == 0:
            save()
except SystemExit:
    if fault == "hold":  # Else it is its own fault.
        save()
    raise
if moment == "end":
    suffer()
print("trained to the end", flush=True)
