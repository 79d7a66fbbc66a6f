"""The ideal: one worker's step in a bare session, without other workers.

python plain.py WORK WORKER_INDEX
"""

from __future__ import annotations

import sys

import turns


def main() -> None:
    name, worker_index = sys.argv[1], int(sys.argv[2])
    turns.pin_to_own_core(worker_index)
    import keras_models as models
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        dataset = models.make_dataset(name, worker_index)
        features, labels = v1.data.make_one_shot_iterator(dataset).get_next()
        model = models.make_model(name)
        loss = models.loss_of(model, features, labels)
        step = v1.train.get_or_create_global_step()
        optimizer = models.make_optimizer(name)
        updates = model.get_updates_for(None) + model.get_updates_for(features)
        train_op = tf.group(
            optimizer.minimize(loss, step, var_list=model.trainable_variables), *updates
        )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            run = session.make_callable([train_op, loss])
            my_turns = turns.Turns(worker_index)
            while my_turns.goes_on():
                run()


if __name__ == "__main__":
    main()
