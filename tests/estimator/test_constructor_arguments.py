"""A wrong number or flag is refused by each public constructor, by its name, when it is made."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tfdist.estimator as tfe
from tfdist import monitoring, training
from tfdist.strategies import LocalStrategy, MultiWorkerStrategy
from tfdist.training import schedules


def _input_fn() -> None:
    """Is never called."""


def _model_fn(features: Any, mode: str, params: Any) -> None:
    """Is never called."""


def _sgd() -> Any:
    return training.SGD(0.1)


ESTIMATOR = tfe.Estimator(_model_fn, params={})
OF_METRIC = {"estimator": ESTIMATOR, "metric_name": "loss"}
# Each constructor, and the arguments that it needs.
CONSTRUCTORS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (tfe.RunConfig, {}),
    (tfe.DeviceConfig, {}),
    (tfe.TrainSpec, {"input_fn": _input_fn}),
    (tfe.EvalSpec, {"input_fn": _input_fn}),
    (tfe.Estimator, {"model_fn": _model_fn}),
    (tfe.experimental.InMemoryEvaluatorHook, {"estimator": ESTIMATOR, "input_fn": _input_fn}),
    (tfe.experimental.stop_if_higher_hook, {**OF_METRIC, "threshold": 1.0}),
    (tfe.experimental.stop_if_no_decrease_hook, {**OF_METRIC, "max_steps_without_decrease": 9}),
    (tfe.DeviceLoggingTensorHook, {"at_end": True}),
    (tfe.ProfilerHook, {"save_steps": 5}),
    (tfe.inputs.numpy_input_fn, {"x": np.ones(3), "shuffle": False}),
    (tfe.inputs.pandas_input_fn, {"x": pd.DataFrame({"a": [1.0]}), "shuffle": False}),
    (tfe.LatestExporter, {"name": "a", "serving_input_receiver_fn": _input_fn}),
    (tfe.FinalExporter, {"name": "a", "serving_input_receiver_fn": _input_fn}),
    (tfe.BestExporter, {"serving_input_receiver_fn": _input_fn}),
    (LocalStrategy, {}),
    (MultiWorkerStrategy, {}),
    (monitoring.CsvMetricsHook, {"path": "a.csv"}),
    (monitoring.MemoryHook, {}),
    (monitoring.PrometheusHook, {"port": 0}),
    (monitoring.StepProfileHook, {"directory": "profile"}),
    (monitoring.ThroughputHook, {}),
    (training.SGD, {}),
    (training.AdamW, {}),
    (training.LAMB, {}),
    (training.LARS, {}),
    (training.ClippedOptimizer, {"optimizer": _sgd()}),
    (training.LossScaleOptimizer, {"inner_optimizer": _sgd()}),
    (training.GradientAccumulationOptimizer, {"optimizer": _sgd(), "num_mini_batches": 2}),
    (schedules.linear_decay, {"rate": 0.1, "steps": 9}),
    (schedules.polynomial_decay, {"rate": 0.1, "steps": 9}),
    (schedules.cosine_decay, {"rate": 0.1, "steps": 9}),
    (schedules.warmup, {"rate_or_schedule": 0.1, "steps": 9}),
]
# Their values may be negative.
SIGNED = ("tf_random_seed", "experimental_max_worker_delay_secs", "threshold")


def _wrong_values(name: str, annotation: str) -> list[Any]:
    """Returns values that are neither of the types in an annotation nor in any range."""
    if annotation.startswith("Callable"):
        return []
    kinds = set(re.findall(r"\b(?:int|float|bool)\b", annotation))
    if name.startswith("save_checkpoints"):
        kinds = {"int"}
    if not kinds:
        return []
    wrong: list[Any] = ["5", "no", [], {}, object(), np.ones(2)]
    if "bool" in kinds:
        return wrong if len(kinds) > 1 else [*wrong, 1.5, -1, float("nan")]
    return [*wrong, float("nan"), *([] if name in SIGNED else [-1])]


def _cases() -> Iterator[Any]:
    for make, needed in CONSTRUCTORS:
        for parameter in inspect.signature(make).parameters.values():
            for number, wrong in enumerate(
                _wrong_values(parameter.name, str(parameter.annotation))
            ):
                given = {**needed, parameter.name: wrong}
                case = f"{make.__name__}-{parameter.name}-{number}"
                yield pytest.param(make, parameter.name, given, id=case)


@pytest.mark.parametrize(("make", "name", "given"), list(_cases()))
def test_a_wrong_value_is_refused_by_the_arguments_name(
    make: Callable[..., Any], name: str, given: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        make(**given)
    message = str(raised.value)
    assert ("loss scale" if name == "dynamic" else name.rstrip("s")) in message, message
    assert "not supported between" not in message
    assert len(message.splitlines()) <= 2


def test_numbers_of_numpy_and_whole_floats_are_taken() -> None:
    config = tfe.RunConfig(
        save_summary_steps=np.int64(5),
        save_checkpoints_steps=1e3,
        keep_checkpoint_max=np.int32(3),
        session_creation_timeout_secs=np.float32(2.5),
    )
    assert config.save_checkpoints_steps == 1000
    assert tfe.TrainSpec(_input_fn, max_steps=np.int64(7)).max_steps == 7
    assert monitoring.StepProfileHook("profile", np.int64(2), 3.0).last_step == 3  # type: ignore[arg-type]


def test_a_model_dir_that_is_no_path_and_a_resolver_that_is_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model_dir must be a path, got 1\.5"):
        tfe.RunConfig(model_dir=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cluster_resolver must be a .*ClusterResolver, got \{\}"):
        MultiWorkerStrategy({})  # type: ignore[arg-type]
