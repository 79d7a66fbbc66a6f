"""Pretrains BERT: masked words and next sentences, on one device, many, or several machines.

A small model on generated data, which shows the log:

    python examples/bert/run_pretraining.py

English text of this Python's own documentation, alone and with two workers (over gRPC or MPI):

    python examples/bert/run_pretraining.py --config sample_tiny --evaluate
    tfdist run --num-instances 2 -- python examples/bert/run_pretraining.py \\
        --config sample_tiny --gradient-accumulation 1 --evaluate

BERT base as a pipeline over four devices, and BERT large with 16 replicas of four devices each:

    python examples/bert/run_pretraining.py --dataset generated --config pretrain_base_128_pod4 \\
        --training-steps 1
    tfdist run --num-instances 1 --num-replicas 16 --ipus-per-replica 4 -- \\
        python examples/bert/run_pretraining.py --dataset generated \\
        --config pretrain_large_128_POD64 --training-steps 1

--dry-run prints sizes, devices, memory and time of such a run, and starts nothing. Ctrl-C finishes
the step and saves a checkpoint, if there is a --checkpoint-output-dir. The files:

    arguments.py      options, presets, checks        data.py        data sets
    plan.py           sizes and estimates             modeling.py    the model
    pretraining.py    Estimator, optimizer            log.py         blocks and the line of a step
    masked_text.py    texts for --predict             ../application what it shares with the ResNet

The last line on standard output is JSON with the figures of the run.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "application"))

from arguments import Settings, check_found_checkpoints, parse
from data import Dataset, SampleShape, open_dataset
from layout import saving_on_interrupt
from masked_text import MaskedTexts, read_masked_texts
from options import refusals
from plan import Plan, check_memory, describe, make_plan

from tfdist.cluster import ClusterError
from tfdist.cluster.instances import restart_count


def main() -> None:
    start = time.perf_counter()
    with refusals(ClusterError):
        settings, notes = read_settings()
        plan = make_plan(settings)
        if settings.dry_run:
            print(*notes, describe(plan), sep="\n")
            return
        check_memory(plan)
        check_found_checkpoints(settings)
        say(plan, *notes, f"Using config: {settings.config}")
        if plan.is_overridden:
            overridden = "The number of replicas is overridden by tfdist run."
            say(plan, f"{overridden} The new value is {plan.layout.replicas}.")
        figures = train(plan, *load_data(plan), start)
    if plan.layout.worker == 0:
        print(json.dumps(figures), flush=True)


def say(plan: Plan, *lines: str) -> None:
    """Writes lines to standard error, on worker 0."""
    if plan.layout.worker == 0:
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def read_settings() -> tuple[Settings, list[str]]:
    """Returns the settings; a run that the launcher starts again goes on from its checkpoint."""
    settings, notes = parse(sys.argv[1:])
    if restart_count() and settings.checkpoint_output_dir:
        settings = replace(settings, resume_training_from_checkpoint=True)
    return settings, notes


def load_data(plan: Plan) -> tuple[Dataset, Dataset | None, MaskedTexts | None]:
    """Returns the data to train on, and those to evaluate on and to predict if asked."""
    settings = plan.settings
    say(plan, "------------------- Data Loading Started ------------------")
    start = time.perf_counter()
    shape = SampleShape(
        sequence_length=settings.sequence_length,
        mask_tokens=settings.mask_tokens,
        vocab_size=settings.vocab_size,
    )

    def load(evaluation: bool) -> Dataset:
        return open_dataset(
            settings.dataset,
            shape,
            seed=settings.random_seed,
            input_files=settings.input_files,
            vocab_file=settings.vocab_file,
            evaluation=evaluation,
        )

    dataset = load(evaluation=False)
    dataset.input_fn(plan.layout)  # Refuses data that is too little for a step.
    held_out = load(evaluation=True) if settings.evaluate else None
    texts = None
    if settings.predict:
        texts = read_masked_texts(settings.predict, dataset.vocab_file, shape)
    say(plan, f"Data loaded in {time.perf_counter() - start} secs", "-" * 59)
    return dataset, held_out, texts


def train(
    plan: Plan,
    dataset: Dataset,
    held_out: Dataset | None,
    texts: MaskedTexts | None,
    start: float,
) -> dict[str, Any]:
    """Trains, and returns the figures of the run, which started at the time `start`.

    TensorFlow is imported here, after everything that can be refused without it.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    start_of_import = time.perf_counter()
    import pretraining
    from log import Log

    import_s = time.perf_counter() - start_of_import
    log = Log(plan.layout.worker, start)
    with saving_on_interrupt(plan.settings.checkpoint_output_dir):
        figures = pretraining.train(plan, dataset, held_out, texts, log)
    return {**figures, "import_s": round(import_s, 3)}


if __name__ == "__main__":
    main()
