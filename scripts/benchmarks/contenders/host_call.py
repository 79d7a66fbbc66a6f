"""`tfdist`: an Estimator with host_call, over gRPC, over Horovod, or alone.

python host_call.py WORK WORKER_INDEX grpc|horovod|none
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import turns


def main() -> None:
    name, engine = sys.argv[1], sys.argv[3]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", sys.argv[2]))
    turns.pin_to_own_core(worker_index)
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    strategies: dict[str, Any] = {
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = tfe.RunConfig(train_distribute=strategies[engine]())
        estimator = tfe.Estimator(estimators.make_model_fn(name), folder, config)
        estimator.train(
            lambda: models.make_dataset(name, worker_index),
            hooks=[estimators.TakeTurns(worker_index)],
        )


if __name__ == "__main__":
    main()
