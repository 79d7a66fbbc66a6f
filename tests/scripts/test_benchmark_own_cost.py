import json
import os
import sys
import time
from typing import Any

import first_steps
import own_cost_figures as figures
import pytest
from own_cost_figures import Found
from results import Part, Ratio, Table
from turn_taking import ContenderError


def found(**changes: Any) -> Found:
    loop = {"estimator": [0.00103], "run": [0.00101], "callable": [0.001], "plain": [0.0009]}
    values = {
        "loops": {"tiny": loop, "cnn": {name: [10 * s for s in loop[name]] for name in loop}},
        "starts": {
            "plain": [3.0, 3.2],
            "none": [3.4, 3.9],
            "plain-pair": [4.0, 4.4],
            "grpc": [5.0, 5.2],
        },
        "peak_bytes": {"cnn": {"plain": 500_000_000, "tfdist, one worker": 600_000_000}},
        "inputs": {
            cores: {
                "one-batch": [0.004],
                "memory": [0.005],
                "generator": [0.00515],
                "endless-generator": [0.0114],
            }
            for cores in ("one", "all")
        },
    }
    return Found(**(values | changes))


def ratio(part: Part, start: str) -> Ratio:
    return next(one for one in part.ratios if one.name.startswith(start))


def table(part: Part, start: str) -> Table:
    return next(one for one in part.tables if one.title.startswith(start))


def test_the_target_of_the_loop_is_for_the_same_graph_and_a_model_that_computes() -> None:
    part = figures.make_part(found(), ())
    assert ratio(part, "CNN: Estimator loop against session.run").is_reached() is True
    assert ratio(part, "CNN: Estimator loop against make_callable, same").target == 1.03
    assert ratio(part, "CNN: Estimator loop against make_callable, without").target is None
    assert ratio(part, "one weight: Estimator loop against session.run").target is None


def test_what_the_loop_adds_is_in_microseconds() -> None:
    rows = table(figures.make_part(found(), ()), "A step of one worker").rows
    assert rows[0][-2:] == ("20", "30")
    assert rows[1][-2:] == ("200", "300")


def test_start_up_is_the_difference_of_each_round() -> None:
    part = figures.make_part(found(), ())
    alone = ratio(part, "Start-up, tfdist, one worker")
    assert (alone.value, alone.target) == (pytest.approx(0.55), 0.5)  # 0.4 and 0.7
    assert alone.is_reached() is False


def test_the_bound_of_two_workers_is_two_processes_at_once() -> None:
    pair = ratio(figures.make_part(found(), ()), "Start-up, tfdist, 2 workers")
    assert pair.value == pytest.approx(0.9)  # 1.0 and 0.8
    assert pair.name.endswith("least program with TensorFlow, two at once")
    assert (pair.target, pair.is_reached()) == (1.0, True)


def test_memory_is_compared_with_the_plain_model() -> None:
    part = figures.make_part(found(), ())
    assert ratio(part, "CNN: peak memory of tfdist, one worker").value == pytest.approx(1.2)
    assert table(part, "Peak memory").rows[1] == ("CNN", "tfdist, one worker", "600", "1.20")


def test_a_sample_of_the_generator_has_its_cost() -> None:
    part = figures.make_part(found(), ())
    asked = ratio(part, "Input, one core: generator, kept (as in the example) against arrays")
    assert asked.value == pytest.approx(1.03) and asked.target == 1.05
    endless = ratio(part, "Input, one core: generator in every step")
    assert endless.target is None
    assert endless.note.startswith("100 us a sample")  # 6.4 ms for 64


def test_the_data_can_be_written_as_json() -> None:
    part = figures.make_part(found(), ("Memory with Horovod: ...",))
    assert json.loads(json.dumps(part.data))["starts"]["none"] == [3.4, 3.9]
    assert part.missing == ("Memory with Horovod: ...",)


@pytest.mark.processes
def test_a_fresh_process_is_timed_until_its_first_step_is_done() -> None:
    before_s = time.monotonic()
    seconds = first_steps.first_step_s("cnn", "none", [min(os.sched_getaffinity(0))])
    assert 0 < seconds < time.monotonic() - before_s


@pytest.mark.processes
def test_a_process_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('KeyError: no such model')"]
    monkeypatch.setattr(first_steps, "program", lambda *_: command)
    with pytest.raises(ContenderError, match=r"grpc: exit code 1\. KeyError: no such model"):
        first_steps.first_step_s("cnn", "grpc", [0, 0], num_workers=2)
