"""`tfdist`: an Estimator with host_call, over gRPC or over Horovod.

python host_call.py WORK WORKER_INDEX grpc|horovod
"""

from __future__ import annotations

import os
import sys
import tempfile

import turns


def main() -> None:
    name, index, engine = sys.argv[1:4]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    import estimators
    import keras_models as models
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    strategy = HorovodStrategy() if engine == "horovod" else MultiWorkerStrategy()
    with tempfile.TemporaryDirectory() as folder:
        config = tfe.RunConfig(train_distribute=strategy)
        estimator = tfe.Estimator(estimators.make_model_fn(name), folder, config)
        estimator.train(
            lambda: models.make_dataset(name, worker_index),
            hooks=[estimators.TakeTurns(worker_index)],
        )


if __name__ == "__main__":
    main()
