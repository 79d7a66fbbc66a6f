"""Trains a ResNet: alone, on several workers, with several replicas, or as a pipeline.

Alone, with a preset of configs.yml:

    python examples/cnn/train.py --config digits_resnet8

Two workers with two replicas each; nothing else changes, nor does the loss, if the batch stays:

    tfdist run --num-instances 2 --num-replicas 4 -- \\
        python examples/cnn/train.py --config digits_resnet8 --batch-size 16

Over MPI, or in two terminals with TF_CONFIG, as in examples/mnist/train.py:

    mpirun -np 2 -H localhost:2 python examples/cnn/train.py --config digits_resnet8 --batch-size 32

The model on four devices, with seven micro-batches in each weight update:

    python examples/cnn/train.py --pipeline --shards 4 --gradient-accumulation-count 7

The sizes of a run, without starting it:

    python examples/cnn/train.py --config mk2_resnet50_mlperf_pod16_bs20 --dry-run

A run has a folder of its own in --log-dir. A run that was interrupted goes on with --restore-path
FOLDER, and by itself under `tfdist run --max-restarts 1`. Ctrl-C finishes the step and saves a
checkpoint first. When the training has ended, worker 0
validates every checkpoint. validation.py does it later, and an evaluator beside the training:

    tfdist run --num-instances 2 --evaluator -- \\
        python examples/cnn/train.py --config digits_resnet8 --batch-size 32 --evaluator
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "application"))

# None of these imports TensorFlow, which takes seconds: what is wrong is said at once.
from arguments import Settings, parse
from datasets import Dataset
from layout import saving_on_interrupt
from options import UsageError, check_folder, refusals
from plan import Plan, describe, find_data, make_plan
from validation import Validator, validator_alone

from tfdist.cluster import find_cluster
from tfdist.cluster.instances import Instance, find_instance, has_evaluator, restart_count

# Options that must be those of the run that goes on.
_OF_THE_MODEL = ("model_size", "dataset", "norm", "groups", "precision", "optimiser", "momentum")


def main() -> None:
    with refusals():
        settings, notes = parse(sys.argv[1:])
        instance = find_place(settings)
        if instance.index == 0 and notes:
            print(*notes, sep="\n", file=sys.stderr)
        facts, dataset = find_data(settings)
        plan = make_plan(settings, facts, instance)
        if settings.dry_run or dataset is None:
            print(describe(plan, settings))
            return
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
        folder = choose_folder(settings, plan)
        folder.mkdir(parents=True, exist_ok=True)
        if plan.is_evaluator:
            batch = plan.layout.global_batch
            validator_alone(settings, batch, facts, dataset, folder).validate_beside(folder)
            return
        with saving_on_interrupt(folder):
            train(settings, plan, dataset, folder)


def find_place(settings: Settings) -> Instance:
    """Returns the place of this process in the run. The evaluator comes after the workers."""
    found = find_cluster()
    is_evaluator = found is not None and found[1].type == "evaluator"
    if settings.evaluator and not (has_evaluator() or settings.dry_run):
        raise UsageError(
            "--evaluator needs a process that evaluates, and this run has none: start it with "
            'tfdist run --evaluator, or add the job "evaluator" to TF_CONFIG\'s cluster'
        )
    if found is None or not is_evaluator:
        return find_instance()
    if not settings.evaluator:
        raise UsageError(
            "the run has an evaluator, which has nothing to do without the option --evaluator"
        )
    workers = found[0].num_workers
    return Instance(index=workers, num_instances=workers)


def choose_folder(settings: Settings, plan: Plan) -> Path:
    """Returns the folder of the run; a folder with checkpoints of another run is refused.

    It has the same name after a restart, so that the run goes on with its checkpoints.
    """
    name = (
        f"resnet{settings.model_size}_{settings.dataset}_batch{plan.layout.global_batch}"
        f"_{settings.precision}{settings.name_suffix}"
    )
    folder = Path(settings.log_dir, name)
    goes_on = restart_count() > 0
    if settings.restore_path:
        restored = Path(settings.restore_path)
        if not has_checkpoint(restored):
            raise UsageError(
                f"--restore-path {restored} has no checkpoint: give a run's folder or one of its "
                "checkpoints, such as logs/run/model.ckpt-100"
            )
        check_options(settings, restored if restored.is_dir() else restored.parent)
        if restored.is_dir():
            folder, goes_on = restored, True
    if settings.init_path and not has_checkpoint(Path(settings.init_path)):
        raise UsageError(f"--init-path {settings.init_path} has no checkpoint")
    if plan.layout.worker == 0 and not goes_on and has_checkpoint(folder):
        raise UsageError(
            f"{folder} has checkpoints of an earlier run. Go on with it by --restore-path "
            f"{folder}, or choose another --name-suffix or --log-dir"
        )
    check_folder("log-dir", folder)
    return folder


def has_checkpoint(path: Path) -> bool:
    """Returns whether a path is a checkpoint, or a folder with one."""
    return Path(f"{path}.index").exists() or any(path.glob("model.ckpt-*.index"))


def check_options(settings: Settings, folder: Path) -> None:
    """Refuses to go on with a run that has another model."""
    file = folder / "arguments.json"
    if not file.exists():
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    for name in _OF_THE_MODEL:
        now = getattr(settings, name)
        if before.get(name, now) != now:
            raise UsageError(
                f"the run in {folder} has {name.replace('_', ' ')} {before[name]}, and this one "
                f"{now}: give the options of that run, or --init-path in place of --restore-path"
            )


def train(settings: Settings, plan: Plan, dataset: Dataset, folder: Path) -> None:
    """Trains, and then validates each checkpoint, unless an evaluator does."""
    import tensorflow.compat.v1 as v1
    from checkpoints import copy_checkpoint
    from model import make_estimator
    from optimization import make_schedule
    from run_log import LogHook, RunLog, write_settings

    import tfdist.estimator as tfe
    from tfdist import monitoring

    v1.logging.set_verbosity(v1.logging.WARN)
    is_first = plan.layout.worker == 0
    log = RunLog(folder, plan.layout.worker, writes=is_first or settings.log_all_instances)
    if is_first:
        write_settings(folder, settings, plan)
        if settings.restore_path and not has_checkpoint(folder):
            copy_checkpoint(settings.restore_path, folder)
    log.say(describe(plan, settings))

    estimator = make_estimator(settings, plan, dataset, folder)
    hooks: list[Any] = [LogHook(log, plan, make_schedule(settings, plan))]
    if settings.profile:
        hooks.append(monitoring.StepProfileHook(folder / "profile"))
    try:
        input_fn = dataset.training.input_fn(
            plan.layout, augment=settings.augment, eight_bit=settings.eight_bit_io
        )
        estimator.train(input_fn, hooks=hooks, max_steps=plan.num_steps)
    except tfe.CheckpointMismatchError as error:
        raise UsageError(str(error)) from None
    if is_first and not (settings.no_validation or settings.evaluator):
        validator = Validator(
            estimator=estimator, settings=settings, plan=plan, dataset=dataset, log=log
        )
        validator.validate_all(folder)


if __name__ == "__main__":
    main()
