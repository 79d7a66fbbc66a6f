"""The programs that killed_worker.py starts: one training with tfdist, PyTorch, and Horovod.

    killed_worker_training.py tfdist|torch|horovod FOLDER KILL_STEP

Each is what the framework's own documentation shows for a training that survives a lost worker.
Two workers take 6 epochs of 12 steps, save after each, and the second one kills itself before step
KILL_STEP, once. Each prints a line as it starts, the first one at each step, and each the digest of
all weights and slots at the end.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

folder, kill_step = Path(sys.argv[2]), int(sys.argv[3])
BATCH_SIZE, STEPS, EPOCHS, RATE, MOMENTUM = 24, 12, 6, 0.01, 0.9
x = np.random.RandomState(0).rand(BATCH_SIZE * STEPS, 20).astype("float32")
y = x.sum(axis=1, keepdims=True)


def say_start(rank: int) -> None:
    """Prints that a process has begun."""
    sys.stdout.write(f"worker {rank} starts\n")
    sys.stdout.flush()


def begin_step(step: int, rank: int) -> None:
    """Prints the step, or kills the second worker."""
    note = folder / "killed"
    if rank == 1 and step == kill_step and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()


def say_digest(values: Sequence[Any]) -> None:
    """Prints the digest of all weights and slots."""
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in values))
    sys.stdout.write(f"digest {digest.hexdigest()[:16]}\n")
    sys.stdout.flush()


def fit_with_tfdist() -> None:
    """Trains by `fit`: BackupAndRestore is all that the program has for this."""
    import keras
    import tensorflow as tf

    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run()
    rank = strategy.extended.collectives.worker_index
    say_start(rank)
    keras.utils.set_random_seed(1)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1_000, seed=1).batch(BATCH_SIZE)
    with strategy.scope():
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input([20]), *layers])
        model.compile(keras.optimizers.SGD(RATE, MOMENTUM), "mse")

    class Says(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begin_step(int(model.optimizer.iterations) + 1, rank)

    backup = keras.callbacks.BackupAndRestore(str(folder / "backup"))
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[backup, Says()])
    say_digest([np.asarray(one) for one in [*model.variables, *model.optimizer.variables]])


def loop_with_torch() -> None:
    """Trains by PyTorch's loop, which saves and loads its snapshots by itself."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    distributed.init_process_group("gloo")
    rank, snapshot = distributed.get_rank(), folder / "snapshot.pt"
    say_start(rank)
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    first = 0
    if snapshot.exists():
        state = torch.load(snapshot)
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sampler: Any = DistributedSampler(data, seed=1)
    loader = DataLoader(data, BATCH_SIZE // 2, sampler=sampler)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (rows, sums) in enumerate(loader):
            begin_step(epoch * STEPS + batch + 1, rank)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(rows), sums).backward()
            optimizer.step()
        if rank == 0:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch}, snapshot)
    slots = [one["momentum_buffer"] for one in optimizer.state.values()]
    say_digest([one.detach().numpy() for one in [*network.parameters(), *slots]])
    distributed.destroy_process_group()


def loop_with_horovod() -> None:
    """Trains by Horovod's loop, which commits its state and goes on from the last commit."""
    import horovod.tensorflow as hvd
    import tensorflow as tf
    import tf_keras as keras

    hvd.init()
    say_start(hvd.rank())
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input([20]), *layers])
    optimizer = keras.optimizers.legacy.SGD(RATE, MOMENTUM)
    optimizer._create_all_weights(model.trainable_variables)

    def train_step(rows: Any, sums: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(rows) - sums))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        for epoch in range(state.epoch, EPOCHS):
            order = list(range(len(x)))
            random.Random(epoch).shuffle(order)
            for batch in range(STEPS):
                begin_step(epoch * STEPS + batch + 1, hvd.rank())
                # The global batch stays, however many workers are left.
                own = order[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
                own = own[hvd.rank() :: hvd.size()]
                train_step(x[own], y[own])
            state.epoch = epoch + 1
            state.commit()

    train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0))
    say_digest([one.numpy() for one in [*model.variables, *optimizer.variables()]])


PROGRAMS = {"tfdist": fit_with_tfdist, "torch": loop_with_torch, "horovod": loop_with_horovod}
PROGRAMS[sys.argv[1]]()
