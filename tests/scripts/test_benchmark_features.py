from typing import Any

import feature_figures as figures
import features
import pytest
from contender import Contender
from feature_figures import Found
from results import Options, Part, Ratio
from turn_taking import ContenderError


def found(**changes: Any) -> Found:
    step = {"plain": [0.010], "loss-scale": [0.0104], "backward": [0.004], "accumulated": [0.0399]}
    norms = {"own-norm": [0.3], "replica-norm": [0.315], "keras-norm": [0.35]}
    values = {
        "steps": {"cnn grpc": step, "resnet-20 horovod": norms},
        "hooks": {"mlp": {"plain": [0.05], "hooks": [0.0502]}},
        "updates": {name: [0.01 * (1 + n)] for n, name in enumerate(figures.UPDATES)},
    }
    return Found(**(values | changes))


def ratio(part: Part, start: str) -> Ratio:
    return next(one for one in part.ratios if one.name.startswith(start))


def test_each_ratio_divides_by_the_step_without_the_feature() -> None:
    part = figures.make_part(found(), ())
    assert ratio(part, "CNN, gRPC: loss scaling").value == pytest.approx(1.04)
    assert ratio(part, "CNN, gRPC: loss scaling").is_reached() is False
    assert ratio(part, "ResNet-20, Horovod: batch norm over replicas ag").value == pytest.approx(
        1.05
    )
    assert ratio(part, "MLP, one worker: all hooks").value == pytest.approx(1.004)
    assert ratio(part, "Update: LAMB against Adam,").value == pytest.approx(3)


def test_accumulation_is_bounded_by_its_passes_and_one_step() -> None:
    times = found().steps["cnn grpc"]
    assert figures.accumulation_bound(times) == [pytest.approx(0.010 + 7 * 0.004)]
    part = figures.make_part(found(), ())
    assert ratio(part, "CNN, gRPC: accumulation of 8").value == pytest.approx(0.0399 / 0.038)


def test_as_fast_as_tf_keras_is_a_least_value() -> None:
    fast = ratio(figures.make_part(found(), ()), "ResNet-20, Horovod: batch norm over replicas, t")
    assert fast.value == pytest.approx(0.35 / 0.315)
    assert (fast.at_most, fast.is_reached()) == (False, True)


def test_what_needs_no_reduction_is_measured_in_one_worker() -> None:
    workers = {
        feature: [features._contender("cnn", feature, engine).num_workers for engine in engines]
        for feature, engines in {
            "plain": ("grpc", "horovod", "none"),
            "backward": ("grpc", "horovod"),
        }.items()
    }
    assert workers == {"plain": [2, 2, 1], "backward": [1, 1]}


def test_a_model_that_cannot_be_measured_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:

    def take_turns(contenders: list[tuple[Contender, int]], options: Options) -> Any:
        if any(one.name == "replica-norm" for one, _ in contenders):
            raise ContenderError("replica-norm: exit code 1.")
        return {one.name: [0.01] for one, _ in contenders}

    monkeypatch.setattr(features, "horovod_problem", lambda: "Horovod is not installed.")
    monkeypatch.setattr(features, "_take_turns", take_turns)
    options = Options(rounds=1, models=("cnn", "resnet-20"), cores=(0, 1), say=lambda line: None)
    part = features.measure(options)
    assert part.missing == (
        "Horovod: Horovod is not installed. Run: tfdist horovod install",
        "resnet-20, grpc: replica-norm: exit code 1.",
    )
    assert ratio(part, "CNN, gRPC: loss scaling").value == 1
