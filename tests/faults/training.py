"""A small training that the tests of faults start, in which one worker comes to harm.

    training.py MODEL_DIR FAULT MOMENT WORKER

Worker WORKER suffers FAULT at MOMENT, at the first start only; the file MODEL_DIR.fault then says
when, by the clock of `time.time`. FAULT "hold" is none: it trains until it is stopped.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NUM_STEPS = 60 if sys.argv[2] != "hold" else 1_000_000  # "hold": until it is stopped
SAVE_STEPS = 10
MIDDLE = 35

model_dir, fault, moment, worker = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
index = int(os.environ.get("TFDIST_INSTANCE_INDEX", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
is_victim = index == worker and os.environ.get("TFDIST_RESTART_COUNT", "0") == "0"
note = Path(f"{model_dir}.fault")


def suffer() -> None:
    if fault == "hold" or not is_victim or note.exists():
        return
    note.write_text(repr(time.time()))
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exception":
        raise RuntimeError("the data are broken")
    elif fault == "exit 3":
        sys.exit(3)
    elif fault == "exit 0":
        sys.exit(0)
    elif fault == "hang":
        time.sleep(10_000)
    elif fault == "memory":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)
        bytearray(1 << 30)
    elif fault == "full disk":
        # No file may grow beyond this; a process that ignores the signal gets an error.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    elif fault == "port taken":
        import json

        config = json.loads(os.environ["TF_CONFIG"])
        address = config["cluster"]["worker"][config["task"]["index"]]
        port = int(address.rpartition(":")[2])
        hold = f"import socket; s = socket.create_server(('', {port})); print(flush=True); input()"
        holder = subprocess.Popen(
            [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        globals()["holder"] = holder
    else:
        raise ValueError(fault)


if moment == "start":
    suffer()

# TensorFlow does without these, and starts faster.
sys.modules.update(dict.fromkeys(("h5py", "pandas", "PIL", "scipy")))

import tensorflow as tf  # noqa: E402
import tensorflow.compat.v1 as v1  # noqa: E402

import tfdist.estimator as tfe  # noqa: E402
from tfdist.strategies import strategy_for_run  # noqa: E402

v1.logging.set_verbosity(v1.logging.INFO)


def input_fn(input_context: Any = None) -> Any:
    dataset = tf.data.Dataset.range(1_000)
    if input_context:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.map(lambda i: tf.cast(i % 7, tf.float32)[None]).repeat().batch(4)


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    if moment == "model":
        suffer()
    weights = v1.get_variable("weights", [1, 5_000], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - 1.0))
    optimizer = v1.train.MomentumOptimizer(0.001, 0.9)
    [(gradient, _)] = optimizer.compute_gradients(loss, [weights])

    def apply_on_host(gradient: Any) -> Any:
        return optimizer.apply_gradients([(gradient, weights)])

    return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, [gradient]))


class Fate(v1.train.SessionRunHook):
    def before_run(self, run_context: Any) -> None:
        step = run_context.session.run(v1.train.get_global_step()) if is_victim else -1
        if (moment == "first step" and step == 0) or (moment == "middle" and step == MIDDLE):
            suffer()

    def end(self, session: Any) -> None:
        if moment == "end":
            suffer()


class Saving(v1.train.CheckpointSaverListener):
    def before_save(self, session: Any, global_step_value: int) -> None:
        if moment != "saving" or global_step_value != 2 * SAVE_STEPS:
            return
        if fault != "kill":
            suffer()
            return

        def watch() -> None:
            while not list(Path(model_dir).glob(f"model.ckpt-{2 * SAVE_STEPS}*")):
                pass
            suffer()

        threading.Thread(target=watch, daemon=True).start()


strategy = strategy_for_run()
config = tfe.RunConfig(
    train_distribute=strategy, save_checkpoints_steps=SAVE_STEPS, log_step_count_steps=10
)
own_dir = model_dir if index == 0 else f"{model_dir}.{index}"
estimator = tfe.Estimator(model_fn, own_dir, config)
estimator.train(input_fn, max_steps=NUM_STEPS, hooks=[Fate()], saving_listeners=[Saving()])
print("trained to the end", flush=True)
