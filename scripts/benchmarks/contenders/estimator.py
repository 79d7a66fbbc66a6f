"""`tfdist`: an Estimator with host_call, over gRPC, over Horovod, or alone.

python estimator.py WORK WORKER_INDEX grpc|horovod|none

The real models are the model_fn of examples/cnn and examples/bert.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import turns
import work as works

EXAMPLES = Path(__file__).parents[3] / "examples"
NO_CHECKPOINTS = 10**9  # Steps between two: none in a turn.


def main() -> None:
    name, index, engine = sys.argv[1:4]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if name in _EXAMPLES:
        model_fn, batch = _EXAMPLES[name](worker_index)
    else:
        model_fn, batch = _small(name, worker_index)
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    strategies: dict[str, Callable[[], Any]] = {
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }
    strategy = strategies[engine]()
    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=NO_CHECKPOINTS)
    # In the folder of this run, which the benchmark removes.
    estimator = tfe.Estimator(model_fn, os.path.abspath(f"model-{worker_index}"), config)
    estimator.train(
        lambda: tf.data.Dataset.from_tensors(batch).repeat(),
        hooks=[models.TakeTurns(worker_index)],
    )


def _resnet(worker_index: int) -> tuple[Callable[..., Any], Any]:
    """Returns ResNet-20's model_fn, with batch norms over a worker's own images, and a batch."""
    sys.path[:0] = [str(EXAMPLES / "cnn"), str(EXAMPLES / "application")]
    arguments, datasets, model, plan = _import("arguments", "datasets", "model", "plan")
    from tfdist.cluster.instances import find_instance

    options = "--dataset cifar-10 --model-size 20 --batch-size 64 --optimiser momentum"
    options += f" --abs-learning-rate {works.LEARNING_RATE} --weight-decay 0 --BN-span 1"
    given, _ = arguments.parse(options.split())
    sizes = plan.make_plan(given, datasets.DATASETS[given.dataset], find_instance())
    batch = works.make_batch(works.WORKS[works.RESNET_20], worker_index)
    # float32 images are normalised already: nothing says how.
    return model.make_model_fn(given, sizes, None), batch


def _bert(worker_index: int) -> tuple[Callable[..., Any], Any]:
    """Returns BERT's model_fn, and a batch under the names that it has for it."""
    sys.path[:0] = [str(EXAMPLES / "bert"), str(EXAMPLES / "application")]
    arguments, pretraining = _import("arguments", "pretraining")
    work = works.WORKS[works.BERT_MINI]
    options = f"--config mini_128 --micro-batch-size {work.batch_size} --gradient-accumulation 1"
    settings, _ = arguments.parse(options.split())
    features, labels = works.make_batch(work, worker_index)
    batch = {
        "input_ids": features["words"],
        "input_mask": features["mask"],
        "segment_ids": features["segments"],
        "masked_lm_positions": features["positions"],
        "masked_lm_ids": labels["words"],
        "masked_lm_weights": np.ones_like(labels["words"], np.float32),
        "next_sentence_labels": labels["sentences"],
    }
    return pretraining.single_device_model_fn(settings), batch


def _small(name: str, worker_index: int) -> tuple[Callable[..., Any], Any]:
    """Returns the model_fn of a small work, and a batch."""
    import estimators

    return estimators.make_model_fn(name), works.make_batch(works.WORKS[name], worker_index)


_EXAMPLES = {works.RESNET_20: _resnet, works.BERT_MINI: _bert}


def _import(*names: str) -> Iterator[Any]:
    """Imports modules of the example whose folder is in front."""
    return map(importlib.import_module, names)


if __name__ == "__main__":
    main()
