"""Hooks of a program on two workers; tests/estimator has what they do alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as v1

ENGINES = ["grpc", "horovod"]
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(fake_cluster: Any, tmp_path: Path) -> Run:
    """Trains with hooks on every worker of an engine; returns each worker's results."""

    from hooked_training import train

    def run(engine: str, hooks: Any, **options: Any) -> list[dict[str, Any]]:
        return fake_cluster.run(train, engine, str(tmp_path), hooks, options, engine=engine)

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_early_stopping_on_one_worker_stops_all_after_the_same_step(run: Run, engine: str) -> None:
    def hooks(index: int, estimator: Any, say: Any, input_fn: Any) -> list[Any]:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1
        from hooked_training import CountCalls

        from tfdist.estimator.experimental import make_early_stopping_hook, stop_if_higher_hook

        # Evaluations are worker 0's: what worker 1's own folder has of some other run, 7, is
        # nothing to stop for.
        value = 0.9 if index == 0 else 7.0
        with tf.Graph().as_default(), v1.summary.FileWriter(estimator.eval_dir()) as writer:
            part = v1.Summary.Value(tag="accuracy", simple_value=value)
            writer.add_summary(v1.Summary(value=[part]), 100)
        requested: list[bool] = []

        def should_stop() -> bool:
            requested.append(index == 1)
            return requested[-1] and len(requested) == 3

        often: dict[str, Any] = {"run_every_secs": None, "run_every_steps": 2}
        return [
            stop_if_higher_hook(estimator, "accuracy", 0.95, **often),
            make_early_stopping_hook(estimator, should_stop, **often),
            CountCalls(say),
        ]

    workers = run(engine, hooks, max_steps=9)
    # Asked after steps 1, 3 and 5; other workers learn of it in the step after.
    assert [worker["said"] for worker in workers] == [[("calls", 6)]] * 2
    assert workers[0]["step"] == 6


def test_the_same_hooks_on_all_workers_do_their_work(run: Run) -> None:
    def hooks(index: int, estimator: Any, say: Any, input_fn: Any) -> list[Any]:
        import tensorflow as tf
        from hooked_training import CountCalls, LateHooks

        import tfdist.estimator as tfe

        with tf.Graph().as_default():
            profiler = tfe.ProfilerHook(save_steps=3, output_dir=estimator.model_dir + "/profile")
        return [
            tfe.CheckpointSaverHook(estimator.model_dir, save_steps=2),
            profiler,
            LateHooks(estimator.model_dir, say),
            tfe.StopAtStepHook(last_step=5),
            CountCalls(say),
        ]

    workers = run("grpc", hooks, max_steps=9)
    for worker in workers:
        assert worker["said"] == [("final", 5), ("calls", 5)]
        assert sum(file.startswith("profile/timeline-") for file in worker["files"]) == 1
        assert any(file.startswith("own/events.out") for file in worker["files"])
    assert workers[0]["saved"] == [0, 2, 4, 5]
    assert all(worker["saved"] == [] for worker in workers[1:])


def test_a_listener_runs_on_worker_0_and_stops_all(run: Run) -> None:
    def hooks(index: int, estimator: Any, say: Any, input_fn: Any) -> list[Any]:
        from hooked_training import CountCalls

        return [CountCalls(say)]

    def listeners(index: int, say: Any) -> list[Any]:
        from typing import Any  # a class's own names don't go to the workers by themselves

        import tensorflow.compat.v1 as v1

        class Listen(v1.train.CheckpointSaverListener):  # type: ignore[misc,name-defined]
            def after_save(self, session: Any, global_step_value: int) -> bool:
                say(("saved", int(global_step_value)))
                return bool(global_step_value >= 4)

        return [Listen()]

    workers = run("grpc", hooks, max_steps=9, save_checkpoints_steps=2, listeners=listeners)
    saves = [("saved", step) for step in (0, 2, 4, 5)]
    assert [[x for x in worker["said"] if x[0] == "saved"] for worker in workers] == [saves, []]
    for worker in workers:
        assert [x for x in worker["said"] if x[0] == "calls"] == [("calls", 5)]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_worker_is_watched_and_worker_0_evaluates(run: Run, engine: str) -> None:
    def hooks(index: int, estimator: Any, say: Any, input_fn: Any) -> list[Any]:
        import os
        from typing import Any  # a class's own names don't go to the workers by themselves

        import tensorflow.compat.v1 as v1

        from tfdist.estimator.experimental import InMemoryEvaluatorHook
        from tfdist.monitoring import CsvMetricsHook, ThroughputHook

        table = os.path.join(estimator.model_dir, "metrics.csv")
        speed = ThroughputHook(every_n_steps=2, global_batch=4, output_dir=estimator.model_dir)

        class Say(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
            def end(self, session: Any) -> None:
                if os.path.exists(table):
                    with open(table) as file:
                        say(file.read().split())
                say(speed.last.traced.reductions)

        evaluator = InMemoryEvaluatorHook(estimator, input_fn, steps=1, every_n_iter=2)
        return [CsvMetricsHook(table, every_n_steps=2), speed, evaluator, Say()]

    workers = run(engine, hooks, max_steps=4)
    # Alone the loss of steps 2 and 4 is 1/2 and 1/4; of two workers it is 1 and 3 times that.
    rows = [row.split(",") for row in workers[0]["said"][0]]
    assert rows[0] == ["step", "loss"]
    assert [int(step) for step, _ in rows[1:]] == [2, 4]
    assert [float(loss) for _, loss in rows[1:]] == pytest.approx([1.0, 0.5])
    for index, worker in enumerate(workers):
        assert len(worker["said"]) == (2 if index == 0 else 1)
        assert worker["said"][-1] > 0
        events = [file for file in worker["files"] if "events.out.tfevents" in file]
        assert any(file.startswith(f"worker_{index}/" if index else "events") for file in events)
        assert any(file.startswith("eval/") for file in events) == (index == 0)
    # Evaluated at the start, after two session calls, after four, and at the end.
    losses = _losses(Path(workers[0]["model_dir"]) / "eval")
    assert [step for step, _ in losses] == [0, 2, 4, 4]
    assert [loss for _, loss in losses] == pytest.approx([1, 1 / 3, 1 / 5, 1 / 5])


def _losses(folder: Path) -> list[tuple[int, float]]:
    (events,) = folder.glob("events.out.tfevents.*")
    return [
        (event.step, value.simple_value)
        for event in v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "loss"
    ]
