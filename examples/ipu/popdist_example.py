"""A PopDist program: the same script on one instance or several, whatever starts it.

    python examples/ipu/popdist_example.py --num-steps 200
    tfdist run --num-instances 2 --num-replicas 4 -- python examples/ipu/popdist_example.py --num-steps 200
    mpirun -np 2 -H localhost:2 python examples/ipu/popdist_example.py --num-steps 200

Its import lines and its device options stand for the original's; its three phases are PopDist's.
"""
import argparse
from tfdist.ipu import tensorflow as tf
from tfdist import ipu
from tfdist.ipu import popdist
from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy

BATCH_SIZE = 32  # Of one replica.


# Parsing.
def parse_arguments():
  parser = argparse.ArgumentParser(description="PopDist TensorFlow example")
  parser.add_argument("--replicas", type=int, default=1, help="Number of replicas; a launcher's wins")
  parser.add_argument("--num-steps", type=int, default=1000)
  parser.add_argument("--model-dir")
  return parser.parse_args()


# Initialisation.
def init_popdist(args):
  popdist.init()
  if popdist.getNumTotalReplicas() != args.replicas:
    print(f"The number of replicas is overridden by the launcher. "
          f"The new value is {popdist.getNumTotalReplicas()}.")
  args.replicas = popdist.getNumLocalReplicas()
  args.popdist_rank = popdist.getInstanceIndex()
  args.popdist_size = popdist.getNumInstances()


# Digestion.
def input_fn():
  (images, labels), _ = tf.keras.datasets.mnist.load_data()
  dataset = tf.data.Dataset.from_tensor_slices((images[..., None], labels.astype("int32")))
  # The instances take parts of their own; within one, each replica takes batches of its own.
  dataset = dataset.shard(num_shards=popdist.getNumInstances(),
                          index=popdist.getInstanceIndex())
  share = len(labels) // popdist.getNumInstances()
  return dataset.shuffle(share, seed=1).repeat().batch(BATCH_SIZE, drop_remainder=True)


def model_fn(features, labels, mode):
  model = tf.keras.Sequential([
      tf.keras.layers.Conv2D(8, 3, activation="relu"),
      tf.keras.layers.MaxPooling2D(),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(10)
  ])
  pixels = tf.cast(features, tf.float32) / 255.0
  logits = model(pixels, training=mode == tf.estimator.ModeKeys.TRAIN)
  loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
  optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
  train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
  return ipu.ipu_estimator.IPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def main():
  args = parse_arguments()
  if popdist.isPopdistEnvSet():
    init_popdist(args)
  else:
    args.popdist_rank, args.popdist_size = 0, 1

  ipu_options = ipu.utils.create_ipu_config()
  ipu_options = ipu.utils.auto_select_ipus(ipu_options, args.replicas)
  strategy = None
  if popdist.isPopdistEnvSet():
    popdist.tensorflow.set_ipu_config(ipu_options, ipus_per_replica=1)
    strategy = PopDistStrategy()
  ipu_run_config = ipu.ipu_run_config.IPURunConfig(ipu_options=ipu_options,
                                                   num_replicas=args.replicas)
  config = ipu.ipu_run_config.RunConfig(ipu_run_config=ipu_run_config,
                                        train_distribute=strategy,
                                        tf_random_seed=1)
  estimator = ipu.ipu_estimator.IPUEstimator(
      config=config, model_fn=model_fn, model_dir=args.model_dir)

  tf.logging.set_verbosity(tf.logging.INFO)
  estimator.train(input_fn=input_fn, max_steps=args.num_steps)

  # Only instance 0 has the checkpoint in a folder of its own.
  step = popdist.execute_on_instances(
      {0}, lambda: int(estimator.get_variable_value("global_step")))
  popdist.synchronize()
  print(f"instance {args.popdist_rank} of {args.popdist_size}, "
        f"{args.replicas} replica(s), step {step}")


if __name__ == "__main__":
  main()
