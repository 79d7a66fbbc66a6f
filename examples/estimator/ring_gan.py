"""Trains a Wasserstein GAN on points of a ring: two optimizers and weight clipping in one train_op.

    python examples/estimator/ring_gan.py

The last line tells how far made points are from the ring, as JSON. With `import
tensorflow.estimator as tfe` the same program runs in TensorFlow 2.15.
"""

import argparse
import json

import numpy as np
import tensorflow as tf

import tfdist.estimator as tfe

v1 = tf.compat.v1
NOISE = 4
CRITIC_STEPS = 3  # For each of the generator's.


def generator(noise: tf.Tensor) -> tf.Tensor:
    with v1.variable_scope("generator"):
        hidden = v1.layers.dense(noise, 32, activation=tf.nn.relu, name="hidden")
        return v1.layers.dense(hidden, 2, name="point")


def critic(points: tf.Tensor) -> tf.Tensor:
    with v1.variable_scope("critic", reuse=v1.AUTO_REUSE):
        hidden = v1.layers.dense(points, 32, activation=tf.nn.leaky_relu, name="hidden")
        return v1.layers.dense(hidden, 1, name="score")


def input_fn() -> tf.data.Dataset:
    random = np.random.RandomState(0)
    angle = random.uniform(0, 2 * np.pi, 4096)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) + random.normal(0, 0.05, [4096, 2])
    noise = random.normal(size=[4096, NOISE])
    return tf.data.Dataset.from_tensor_slices(
        ({"noise": noise.astype(np.float32)}, ring.astype(np.float32))
    ).batch(64)


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, params: dict[str, float]
) -> tfe.EstimatorSpec:
    made = generator(features["noise"])
    if mode == tfe.ModeKeys.PREDICT:
        return tfe.EstimatorSpec(mode, predictions={"point": made})
    score_made, score_real = tf.reduce_mean(critic(made)), tf.reduce_mean(critic(labels))
    critic_loss, generator_loss = score_made - score_real, -score_made
    distance = tf.abs(tf.norm(made, axis=1) - 1.0)
    if mode == tfe.ModeKeys.EVAL:
        metrics = {
            "distance": v1.metrics.mean(distance),
            "spread": v1.metrics.mean_tensor(tf.math.reduce_std(made, axis=0)),
            "generator_loss": v1.metrics.mean(generator_loss),
        }
        return tfe.EstimatorSpec(mode, loss=critic_loss, eval_metric_ops=metrics)

    step = v1.train.get_global_step()
    of_critic, of_generator = v1.trainable_variables("critic"), v1.trainable_variables("generator")
    critic_optimizer = v1.train.RMSPropOptimizer(params["learning_rate"])
    generator_optimizer = v1.train.RMSPropOptimizer(params["learning_rate"])

    # The critic learns, and is clipped, in every step; the generator in every third one.
    is_turn = tf.equal(step % CRITIC_STEPS, 0)
    critic_pairs = critic_optimizer.compute_gradients(critic_loss, var_list=of_critic)
    pairs = generator_optimizer.compute_gradients(generator_loss, var_list=of_generator)
    # Both losses are of the weights before the step. A graph keeps no order but the one it is told.
    with tf.control_dependencies([is_turn, *(gradient for gradient, _ in critic_pairs + pairs)]):
        critic_op = critic_optimizer.apply_gradients(critic_pairs, step)
    with tf.control_dependencies([critic_op]):
        clipped = [
            v.assign(tf.clip_by_value(v, -params["clip"], params["clip"])) for v in of_critic
        ]
    with tf.control_dependencies(clipped):
        train_op = tf.cond(
            is_turn, lambda: generator_optimizer.apply_gradients(pairs), lambda: tf.no_op()
        )
    v1.summary.scalar("critic_loss", critic_loss)
    v1.summary.scalar("generator_loss", generator_loss)
    return tfe.EstimatorSpec(mode, loss=critic_loss, train_op=train_op)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make points of a ring.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=2000, help="training steps")
    arguments = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    estimator = tfe.Estimator(
        model_fn,
        arguments.model_dir,
        tfe.RunConfig(tf_random_seed=1),
        params={"learning_rate": 0.002, "clip": 0.1},
    )
    estimator.train(lambda: input_fn().repeat(), steps=arguments.num_steps)
    metrics = estimator.evaluate(input_fn, steps=8)
    points = [one["point"].tolist() for one in estimator.predict(lambda: input_fn().take(1))]
    result = {name: np.asarray(value).tolist() for name, value in metrics.items()}
    print(json.dumps({**result, "points": points[:3]}))


if __name__ == "__main__":
    main()
