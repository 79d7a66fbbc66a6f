import sys

import own_cost
import pytest
import rounds
from own_cost import ESTIMATOR, RUN
from results import Options
from rounds import Found, Race
from turn_taking import ContenderError, Turn

STARTS = dict(
    zip(own_cost.STARTS, ([3.0, 3.2], [3.4, 3.9], [4.0, 4.4], [5.0, 5.2]) * 2, strict=True)
)


def test_loops_are_over_session_run_and_start_up_beyond_the_least_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: dict[str, int] = {}

    def take_rounds(race: Race, options: Options) -> Found:
        steps[race.label] = race.steps
        times = {RUN: 0.00101, ESTIMATOR: 0.00202}
        turns = {n: [Turn(seconds=s, peak_bytes=0)] for n, s in times.items()}
        return Found(turns=turns)

    monkeypatch.setattr(rounds, "take_rounds", take_rounds)
    monkeypatch.setattr(own_cost, "measure_starts", lambda options: STARTS)
    part = own_cost.measure(
        Options(rounds=1, models=("cnn", "bert-mini"), cores=(0, 1), say=lambda line: None)
    )
    assert steps == {"own cost, tiny": own_cost.TINY_STEPS, "own cost, cnn": 100}
    assert part.ratios[f"CNN: Estimator loop over {RUN}"][1] == pytest.approx(2)
    assert part.groups["one weight"][ESTIMATOR].over[1] == pytest.approx(2)
    assert part.groups["start-up"]["tfdist, one worker"].ms[1] == pytest.approx(3650)


def test_start_up_is_the_difference_of_each_round_from_as_many_processes() -> None:
    alone, pair, fit, fits = own_cost.seconds_beyond(STARTS).items()
    assert alone[0].startswith("Start-up, tfdist, one worker: seconds beyond the least program")
    assert alone[1][1] == pytest.approx(0.55)  # 0.4 and 0.7
    assert pair[0].endswith("least program with TensorFlow, two at once")
    assert pair[1][1] == pytest.approx(0.9)  # 1.0 and 0.8
    assert fit[0].endswith("seconds beyond the least program with Keras 3")
    assert fits[0].endswith("seconds beyond the least program with Keras 3, two at once")


@pytest.mark.processes
def test_a_process_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('KeyError: no such model')"]
    monkeypatch.setattr(own_cost, "program", lambda *_: command)
    with pytest.raises(ContenderError, match=r"estimator: exit code 1\. KeyError: no such model"):
        own_cost.first_step_s("cnn", "estimator", [0, 0], num_workers=2)
