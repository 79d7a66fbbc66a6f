"""Pretrains a small BERT on English text: masked words and next sentences. A file to copy.

    tfdist run --num-instances 2 -- python examples/bert/minimal.py

Without `tfdist run` it trains alone. `modeling.py` has the model, and `data.py` the input.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "application"))

from arguments import Settings
from data import SampleShape, open_dataset
from layout import Layout

from tfdist.cluster.instances import find_instance

# A model that learns something in minutes, and the text of it: docstrings that every Python has.
MODEL = Settings(
    vocab_size=4000,
    sequence_length=64,
    mask_tokens=10,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    hidden_dropout_prob=0.0,
    initializer_range=0.06,
    layer_norm_eps=1e-6,
    recompute_checkpoint_every_layer=False,
)
SHAPE = SampleShape(sequence_length=64, mask_tokens=10, vocab_size=4000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain a small BERT, alone or with others.")
    parser.add_argument("--num-steps", type=int, default=700, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences in each worker")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="learning rate")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    arguments = parser.parse_args()
    instance = find_instance()  # Reports a wrong TF_CONFIG before TensorFlow is imported.
    layout = Layout(
        micro_batch=arguments.batch_size, workers=instance.num_instances, worker=instance.index
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    train(arguments, layout)


def train(arguments: argparse.Namespace, layout: Layout) -> None:
    """Trains, evaluates on the text that is held out, and prints the metrics."""
    import tensorflow.compat.v1 as v1
    from modeling import Bert, State, evaluation_metrics, pretraining_losses

    import tfdist.estimator as tfe
    from tfdist import training
    from tfdist.strategies import strategy_for_run

    v1.logging.set_verbosity(v1.logging.INFO)
    text = open_dataset("sample", SHAPE, seed=5)
    held_out = open_dataset("sample", SHAPE, seed=5, evaluation=True)

    def model_fn(features: State, mode: str) -> tfe.EstimatorSpec:
        bert = Bert(settings=MODEL, is_training=mode == tfe.ModeKeys.TRAIN)
        state = bert.embedding(features)
        state = bert.encoder_layers(0, MODEL.num_hidden_layers)(state)
        state = bert.heads(state)
        losses = pretraining_losses(state)
        if mode == tfe.ModeKeys.EVAL:
            metrics = evaluation_metrics(state)
            return tfe.EstimatorSpec(mode, loss=losses["loss"], eval_metric_ops=metrics)

        optimizer = training.AdamW(
            arguments.learning_rate,
            weight_decay=0.01,
            exclude_from_weight_decay=["bias$", "beta$", "gamma$"],
        )
        gradients, variables = zip(*optimizer.compute_gradients(losses["loss"]), strict=True)

        def apply_on_host(*host_gradients: object) -> object:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(
            mode,
            loss=losses["loss"],
            loss_weight=losses["num_masked"],  # The loss is a mean over the masked words.
            host_call=(apply_on_host, gradients),
        )

    # The same first weights in all workers. Each worker reads its part of each step.
    config = tfe.RunConfig(tf_random_seed=5, train_distribute=strategy_for_run())
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(text.input_fn(layout), max_steps=arguments.num_steps),
        tfe.EvalSpec(held_out.evaluation_input_fn(32), steps=20),
    )
    if metrics is not None and estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


if __name__ == "__main__":
    main()
