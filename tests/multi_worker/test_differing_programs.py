"""Workers whose TensorFlow 2 programs differ: they agree, or all end soon with one line."""

from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 90.0
PROGRAM = Path(__file__).parents[1] / "programs" / "differing_fits.py"
# What comes of each way: the steps of all workers, or an error of all.
AGREED = {
    "an epoch fewer": "fit has 3 epochs on worker 0 and 2 on worker 1",
    "stop after an epoch": 10,
    "an epoch more": "fit has 3 epochs on worker 0 and 4 on worker 1",
    "stop in an epoch": 3,  # Worker 0 was in the next step already.
    "lengths": "fit has 5 steps in an epoch on worker 0 and 6 on worker 1",
    "another loss": "the model has the loss mse on worker 0 and mae on worker 1",
    "another metric": "the model has the metrics mae on worker 0 and mape on worker 1",
    "other weights": "the model has the loss weights 1 on worker 0 and 0.5 on worker 1",
    "all stop in an epoch": 2,
}


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_all_workers_stop_after_the_same_step_or_refuse_to_begin(
    fake_cluster: Any, engine: str
) -> None:
    import differing_fits

    seen = fake_cluster.run(
        differing_fits.train_all, list(AGREED), engine=engine, timeout_s=LIMIT_S
    )
    assert seen == [AGREED] * 2


@pytest.mark.parametrize(
    ("engine", "way", "places"),
    [
        (
            "grpc",
            "evaluate in a callback",
            "worker 0 is in the end of epoch 2 (differing_fits.py:58), worker 1 is in the making "
            "of a distributed dataset (differing_fits.py:44)",
        ),
        (
            "horovod",
            "evaluate after fit",
            "worker 0 has ended its program, worker 1 is in the making of a distributed dataset "
            "(differing_fits.py:60)",
        ),
        (
            "grpc",
            "StopIteration",
            "worker 0 is in step 3 of epoch 1 of fit (differing_fits.py:58), worker 1 is in "
            "a read of loss/count:0 (differing_fits.py:58)",
        ),
    ],
)
def test_workers_that_make_different_calls_end_with_a_line_that_names_both(
    fake_cluster: Any, engine: str, way: str, places: str
) -> None:
    # By default mpirun stops the others.
    env = {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}
    options = {"engine": engine, "forked": True, "env": env}
    with fake_cluster.start_script([str(PROGRAM), way], **options) as script:
        codes = [worker.wait(LIMIT_S) for worker in script.workers]
        lines = [worker.stderr().splitlines()[-1] for worker in script.workers]
    line = (
        f"ProgramsDifferError: {places}, and neither comes any further: every worker must make the "
        "same calls, with the same epochs and steps, and datasets of equal lengths."
    )
    assert (codes, lines) == ([2, 2], [line] * 2)
