"""Updates of 8.4 million weights from given gradients, in one thread: nothing but an optimizer.

python update_only.py OPTIMIZER NUM_VARIABLES DTYPE nearest|stochastic

OPTIMIZER is "adam" (TensorFlow's, whose update is one fused kernel), "adamw", "lamb", "lars" or
"sgd" of tfdist.training. DTYPE is that of the weights.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import turns

NUM_WEIGHTS = 8 * 2**20


def main() -> None:
    optimizer_name, num_variables, dtype, rounding = sys.argv[1:]
    turns.pin_to_own_core(0)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    v1 = tf.compat.v1
    one_thread = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default():
        run = _build(optimizer_name, int(num_variables), tf.as_dtype(dtype), rounding)
        with v1.Session(config=one_thread) as session:
            session.run(v1.global_variables_initializer())
            update = session.make_callable(run)
            my_turns = turns.Turns(0)
            while my_turns.goes_on():
                update()


def _build(name: str, num_variables: int, dtype: Any, rounding: str) -> Any:
    """Returns the op of one update of all weights."""
    import tensorflow as tf

    v1 = tf.compat.v1
    shape = [NUM_WEIGHTS // num_variables]
    v1.train.get_or_create_global_step()
    pairs = []
    for index in range(num_variables):
        values = tf.random.stateless_normal(shape, seed=[index, 0])  # [weights of one variable]
        # A gradient that stays in memory, as that of a step does; a constant's copy is not free.
        gradient = v1.get_variable(f"gradient_{index}", initializer=values, trainable=False)
        weight = v1.get_variable(
            f"weight_{index}", initializer=tf.cast(values, dtype), use_resource=True
        )
        pairs.append((tf.cast(gradient.read_value(), dtype), weight))
    optimizer = _make_optimizer(name, is_stochastic=rounding == "stochastic")
    return optimizer.apply_gradients(pairs, v1.train.get_global_step())


def _make_optimizer(name: str, *, is_stochastic: bool) -> Any:
    import tensorflow as tf

    from tfdist import training

    if name == "adam":
        return tf.compat.v1.train.AdamOptimizer(0.001)
    makers: dict[str, Any] = {
        "adamw": training.AdamW,
        "lamb": training.LAMB,
        "lars": training.LARS,
        "sgd": training.SGD,
    }
    return makers[name](0.001, stochastic_rounding=is_stochastic)


if __name__ == "__main__":
    main()
