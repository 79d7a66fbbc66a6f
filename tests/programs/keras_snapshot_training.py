"""A `fit` with snapshots in memory: its weights depend on the order of every batch.

    keras_snapshot_training.py FOLDER [WORKER:STEP ...]

The first start kills WORKER in STEP, once both hosts have the last snapshot, the second start the
next one, and so on. Each worker takes itself for the only one on its host. Worker 0 loses its
host's snapshots with it. At the end worker 0 writes FOLDER/weights.npz.
"""

import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
from snapshot_training import kill_of_start

from tfdist.cluster.instances import Instance
from tfdist.process.snapshot_folders import folder_of_host, folder_of_run, name_of_host
from tfdist.strategies.keras import snapshots as keras_snapshots
from tfdist.strategies.saving import snapshots as host_snapshots
from tfdist.testing.run import wait_until

ROWS, BATCH, EPOCHS, EVERY = 80, 8, 3, 5  # 10 steps an epoch
HOSTS = ("host-0", "host-1")


def train(folder: str, kill: tuple[int, int] | None = None) -> None:
    """Trains 30 steps, with a backup after each epoch.

    Args:
      folder: The folder for the backup and the weights.
      kill: The worker that is killed, and the step in which it is.
    """
    # Keras does without these, and starts faster.
    sys.modules.update(dict.fromkeys(("pandas", "PIL", "scipy")))
    import keras
    import tensorflow as tf

    from tfdist.strategies import strategy_for_run

    keras.utils.set_random_seed(3)
    strategy = strategy_for_run(num_replicas=1)
    index = strategy.extended.collectives.worker_index
    socket.gethostname = lambda: HOSTS[index]
    host_snapshots.find_instance = lambda: Instance()

    class Kill(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            step = 1 + int(self.model.optimizer.iterations)
            if (index, step) != kill:
                return
            run = os.environ["TFDIST_RUN"]
            name = f"model.ckpt-{step // EVERY * EVERY}.index"
            hosts = [folder_of_run(run) / name_of_host(host) for host in HOSTS]
            assert wait_until(lambda: all(list(host.glob(f"*/{name}")) for host in hosts), 30.0)
            if index == 0:
                shutil.rmtree(folder_of_host(run))
            os.kill(os.getpid(), signal.SIGKILL)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([4]),
                keras.layers.Dense(6),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dropout(0.2, seed=1),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.02), "mse")
    x = np.random.RandomState(0).randn(ROWS, 4).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.abs(x[:, :1])))
    dataset = dataset.shuffle(ROWS, seed=5).batch(BATCH)
    backup = keras.callbacks.BackupAndRestore(str(Path(folder, f"backup-{index}")))
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[backup, Kill()])
    values = {str(n): np.asarray(v) for n, v in enumerate(keras_snapshots.state_of(model))}
    if index == 0:
        np.savez(Path(folder, "weights.npz"), **values)


if __name__ == "__main__":
    train(sys.argv[1], kill_of_start())
