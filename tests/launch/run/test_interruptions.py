"""The cost of a run's interruptions."""

import math
from collections.abc import Callable

from tfdist.launch.run.interruptions import Interruptions
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.progress_file import Progress

Make = Callable[..., WorkerState]


def at(make_worker: Make, step: int, loss: float = 0.5) -> list[WorkerState]:
    worker = make_worker()
    worker.progress = Progress(phase="training", step=step, loss=loss)
    return [worker]


def test_the_cost_is_the_time_until_the_next_step_and_the_steps_made_again(
    make_worker: Make,
) -> None:
    cost = Interruptions()
    cost.begin(at(make_worker, 50), now_s=10.0)
    cost.note(at(make_worker, 40, math.nan), now_s=12.0)  # It has restored a checkpoint.
    assert cost.lost_s == 0.0
    assert cost.lost_until(12.0) == 2.0
    cost.note(at(make_worker, 47), now_s=13.5)  # Its first steps were fast.
    assert cost.lost_until(13.9) == 3.5
    cost.note(at(make_worker, 48), now_s=14.0)
    assert str(cost) == "interrupted once: 3.5 s until the next step, 10 steps made again"
    cost.begin(at(make_worker, 60), now_s=20.0)
    cost.begin(at(make_worker, -1, math.nan), now_s=21.0)  # It failed before a step.
    cost.note(at(make_worker, 61), now_s=24.0)
    assert str(cost) == "interrupted 3 times: 7.5 s until the next step, 10 steps made again"


def test_a_loop_of_its_own_counts_the_steps_of_each_start_from_0(make_worker: Make) -> None:
    def loop(step: int) -> list[WorkerState]:
        worker = make_worker()
        worker.progress = Progress(
            phase="training", step=step, is_own_loop=True, counts_steps=step >= 0
        )
        return [worker]

    cost = Interruptions()
    cost.begin(loop(50), now_s=10.0)
    cost.note(loop(-1), now_s=12.0)
    cost.note(loop(0), now_s=12.5)
    cost.note(loop(3), now_s=13.0)
    assert str(cost) == "interrupted once: 3.0 s until the next step"


def test_of_a_program_that_reports_no_steps_only_the_number_is_known(make_worker: Make) -> None:
    cost = Interruptions()
    cost.begin([make_worker()], now_s=1.0)
    cost.note([make_worker()], now_s=2.0)
    assert str(cost) == "interrupted once"
