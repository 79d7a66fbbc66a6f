"""One worker's steps: in the Estimator's loop, or in a bare loop of session calls.

python own_loop.py WORK WORKER_INDEX LOOP

LOOP is "estimator"; "run" or "callable" for a bare loop in the Estimator's own session, over the
graph that it has built, with `session.run` or a function from `session.make_callable`; "plain" for
a bare loop (callable) over the model in a graph without tfdist, which knows of no other worker.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import turns


def main() -> None:
    name, worker_index, loop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    turns.pin_to_own_core(worker_index)
    if loop == "plain":
        train_plainly(name, worker_index)
    else:
        train_with_estimator(name, loop)


def train_with_estimator(name: str, loop: str) -> None:
    """Trains with the Estimator; a bare loop begins where its first call would."""
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)

    class BareLoop(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> None:
            fetches, session = run_context.original_args.fetches, run_context.session
            if loop == "callable":
                take_turns(session.make_callable(fetches), 0)
            else:
                take_turns(lambda: session.run(fetches), 0)
            run_context.request_stop()

    hook = models.TakeTurns() if loop == "estimator" else BareLoop()
    with tempfile.TemporaryDirectory() as folder:
        estimator = tfe.Estimator(estimators.make_model_fn(name), folder)
        estimator.train(lambda: models.make_dataset(name, 0), hooks=[hook])


def train_plainly(name: str, worker_index: int) -> None:
    """Trains in a session of TensorFlow's alone."""
    import keras_models as models
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        dataset = models.make_dataset(name, worker_index)
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        built = models.build(name, features, labels)
        step = v1.train.get_or_create_global_step()
        update = built.optimizer.minimize(built.loss, step, var_list=built.variables)
        train_op = tf.group(update, *built.updates)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            take_turns(session.make_callable([train_op, built.loss]), worker_index)


def take_turns(do_step: Callable[[], Any], worker_index: int) -> None:
    """Does steps as long as the benchmark wants some."""
    my_turns = turns.Turns(worker_index)
    while my_turns.goes_on():
        do_step()


if __name__ == "__main__":
    main()
