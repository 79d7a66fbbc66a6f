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

--dry-run prints sizes, devices, memory and time of such a run, and starts nothing. The files:

    arguments.py      options, presets, checks        data.py        data sets
    plan.py           sizes and estimates             modeling.py    the model
    pretraining.py    Estimator, optimizer            log.py         blocks and the line of a step

The last line on standard output is JSON with the figures of the run.
"""

import json
import os
import sys
import time
from dataclasses import replace

from arguments import UsageError, check_found_checkpoints, parse, refuse
from data import DataError, SampleShape, open_dataset
from plan import check_memory, describe, make_plan, training_input

from tfdist.cluster import ClusterError
from tfdist.cluster.instances import restart_count


def main() -> None:
    try:
        settings, notes = parse(sys.argv[1:])
        if restart_count() and settings.checkpoint_output_dir:
            settings = replace(settings, resume_training_from_checkpoint=True)
        plan = make_plan(settings)
        if settings.dry_run:
            print(*notes, describe(plan), sep="\n")
            return
        check_memory(plan)
        check_found_checkpoints(settings)
    except (UsageError, ClusterError) as error:
        refuse(error)
    is_first = plan.worker_index == 0

    def say(*lines: str) -> None:
        if is_first:
            print(*lines, sep="\n", file=sys.stderr, flush=True)

    say(*notes, f"Using config: {settings.config}")
    if plan.is_overridden:
        say(
            "The number of replicas is overridden by tfdist run. The new value is "
            f"{plan.local_replicas}."
        )
    say("------------------- Data Loading Started ------------------")
    start = time.perf_counter()
    shape = SampleShape(
        sequence_length=settings.sequence_length,
        mask_tokens=settings.mask_tokens,
        vocab_size=settings.vocab_size,
    )
    options = {
        "seed": settings.random_seed,
        "input_files": settings.input_files,
        "vocab_file": settings.vocab_file,
    }
    try:
        dataset = open_dataset(settings.dataset, shape, **options)
        training_input(plan, dataset)  # Refuses data that is too little for a step.
        held_out = None
        if settings.evaluate:
            held_out = open_dataset(settings.dataset, shape, evaluation=True, **options)
    except DataError as error:
        refuse(error)
    say(f"Data loaded in {time.perf_counter() - start} secs", "-" * 59)

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    start = time.perf_counter()
    from log import Log  # TensorFlow is imported here, after all that can be refused without it.
    from pretraining import train

    import_s = time.perf_counter() - start
    try:
        figures = train(plan, dataset, held_out, Log(plan.worker_index))
    except UsageError as error:  # A checkpoint of another model.
        refuse(error)
    if is_first:
        print(json.dumps({**figures, "import_s": round(import_s, 3)}), flush=True)


if __name__ == "__main__":
    main()
