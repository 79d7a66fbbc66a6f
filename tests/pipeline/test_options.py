"""Options: what they hold, how they show themselves, and what they refuse."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from tfdist.pipeline.options import ADVICE, Options
from tfdist.pipeline.settings import Settings
from tfdist.pipeline.stages import PipelinedExecution, ShardedExecution, Stage

# One call of each setter with a value that is not the default, and what it changes.
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "device_iterations(10)": (10, {"device_iterations": 10}),
    "gradient_accumulation(8)": (8, {"gradient_accumulation": 8}),
    'accumulation_reduction("sum")': ("sum", {"accumulation_reduction": "sum"}),
    'output_mode("all")': ("all", {"output_mode": "all"}),
    "replication_factor(2)": (2, {"replication_factor": 2}),
    'optimizer_state("host")': ("host", {"optimizer_state": "host"}),
    "recomputation(True)": (True, {"recomputation": True}),
    "random_seed(0)": (0, {"random_seed": 0}),
    'enable_profiling("profile")': ("profile", {"profile_dir": "profile"}),
    "show_progress_bar(False)": (False, {"show_progress_bar": False}),
    'execution_strategy(ShardedExecution(Stage("B1"), Stage("B2")))': (
        ShardedExecution("B1", "B2"),
        {"execution_strategy": ShardedExecution("B1", "B2")},
    ),
}


def test_the_defaults_are_one_device_iteration_and_one_micro_batch() -> None:
    assert Options().settings == Settings(
        device_iterations=1,
        gradient_accumulation=1,
        accumulation_reduction="mean",
        output_mode=None,
        every=None,
        replication_factor=1,
        optimizer_state="device",
        recomputation=False,
        random_seed=None,
        profile_dir=None,
        show_progress_bar=True,
        execution_strategy=PipelinedExecution(),
    )


@pytest.mark.parametrize("call", CALLS)
def test_a_setter_sets_its_value_shows_it_and_returns_the_options(call: str) -> None:
    value, change = CALLS[call]
    options = Options()
    assert getattr(options, call.split("(")[0])(value) is options
    assert options.settings == Settings(**change)
    assert repr(options) == f"Options().{call}"


def test_every_setting_has_a_setter() -> None:
    changed = {name for _, change in CALLS.values() for name in change}
    assert changed | {"every"} == set(Settings.__dataclass_fields__)


def test_every_nth_output_takes_its_number() -> None:
    options = Options().output_mode("every_n", every=3)
    assert (options.settings.output_mode, options.settings.every) == ("every_n", 3)
    assert repr(options) == 'Options().output_mode("every_n", every=3)'
    assert options.output_mode("all").settings.every is None


def test_a_later_call_wins_and_none_goes_back_to_the_default() -> None:
    options = Options().device_iterations(10).device_iterations(20).random_seed(0)
    assert options == Options().random_seed(1).device_iterations(20).random_seed(0)
    assert options.random_seed(None).output_mode(None) == Options().device_iterations(20)


def test_a_profiles_folder_may_be_a_path() -> None:
    assert Options().enable_profiling(Path("a") / "b").settings.profile_dir == "a/b"


def test_a_call_takes_micro_batches_for_all_updates_and_replicas() -> None:
    settings = Options().device_iterations(10).gradient_accumulation(8).settings
    assert settings.micro_batches_per_replica == settings.micro_batches_per_call == 80
    settings = Options().device_iterations(10).replication_factor(2).settings
    assert (settings.micro_batches_per_replica, settings.micro_batches_per_call) == (10, 20)


def test_outputs_are_the_last_ones_in_training_and_all_in_inference_by_default() -> None:
    settings = Options().settings
    assert (settings.output_mode_for(True), settings.output_mode_for(False)) == ("final", "all")
    settings = Options().output_mode("sum").settings
    assert (settings.output_mode_for(True), settings.output_mode_for(False)) == ("sum", "sum")


# How they show themselves


def test_options_show_only_what_differs_from_the_default() -> None:
    assert repr(Options()) == "Options()"
    assert repr(Options().device_iterations(1).output_mode(None)) == "Options()"


def test_long_options_are_shown_line_by_line_as_one_would_type_them() -> None:
    stages = [Stage(f"B{i + 1}").device(i) for i in range(4)]
    options = Options().device_iterations(10).execution_strategy(PipelinedExecution(*stages))
    assert repr(options) == (
        "(\n"
        "    Options()\n"
        "    .device_iterations(10)\n"
        "    .execution_strategy(PipelinedExecution(\n"
        '        Stage("B1").device(0),\n'
        '        Stage("B2").device(1),\n'
        '        Stage("B3").device(2),\n'
        '        Stage("B4").device(3),\n'
        "    ))\n"
        ")"
    )


def test_what_all_settings_show_makes_equal_options() -> None:
    options = Options()
    for call, (value, _) in CALLS.items():
        getattr(options, call.split("(")[0])(value)
    assert eval(repr(options)) == options
    assert max(map(len, repr(options).splitlines())) <= 100


# Clones and frozen options


def test_a_clone_is_equal_and_changes_alone() -> None:
    options = Options().device_iterations(10)
    clone = options.clone()
    assert clone == options
    assert clone.device_iterations(100) != options
    assert options.settings.device_iterations == 10


@pytest.mark.parametrize("call", CALLS)
def test_frozen_options_refuse_every_setter_and_name_who_froze_them(call: str) -> None:
    options = Options()
    options.freeze("a DataLoader")
    with pytest.raises(AttributeError) as error:
        getattr(options, call.split("(")[0])(CALLS[call][0])
    assert str(error.value) == (
        f"these options are in use by a DataLoader and cannot change. Write options.clone().{call}."
    )
    assert options == Options()


def test_the_first_user_is_the_one_named() -> None:
    options = Options()
    assert options.freeze("a DataLoader") is options.freeze("a training model")
    with pytest.raises(AttributeError, match="in use by a DataLoader"):
        options.device_iterations(2)


def test_a_clone_of_frozen_options_can_be_changed() -> None:
    options = Options().gradient_accumulation(8)
    options.freeze("a training model")
    assert options.clone().gradient_accumulation(1) == Options()


def test_copied_options_are_equal() -> None:
    options = Options().device_iterations(10).execution_strategy(ShardedExecution("B1"))
    assert copy.deepcopy(options) == pickle.loads(pickle.dumps(options)) == options


def test_every_nth_output_must_come_out_even_when_the_options_are_used() -> None:
    options = Options().output_mode("every_n", every=3).device_iterations(10)
    words = r"every=3\) does not divide the 10 micro-batches.*Make them 9 or 12"
    with pytest.raises(ValueError, match=words):
        options.freeze("a DataLoader")
    options.gradient_accumulation(3).freeze("a DataLoader")


# What they refuse


@pytest.mark.parametrize(
    "name", ["device_iterations", "gradient_accumulation", "replication_factor"]
)
def test_a_count_is_an_integer_of_at_least_1(name: str) -> None:
    for value in (True, 2.0, "2", None):
        with pytest.raises(TypeError, match=rf"{name} must be an integer, got {value!r} \("):
            getattr(Options(), name)(value)
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
            getattr(Options(), name)(value)


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("accumulation_reduction", "max", ValueError, '"mean" or "sum", got \'max\''),
        ("accumulation_reduction", None, ValueError, "got None"),
        ("output_mode", "last", ValueError, '"final", "all", "sum" or "every_n", got \'last\''),
        ("output_mode", "every_n", ValueError, r'Write output_mode\("every_n", every=2\)'),
        ("optimizer_state", "cpu", ValueError, '"device" or "host", got \'cpu\''),
        ("recomputation", 1, TypeError, r"True or False, got 1 \(int\)"),
        ("show_progress_bar", "no", TypeError, r"True or False, got 'no' \(str\)"),
        ("random_seed", 1.5, TypeError, r"integer, got 1.5 \(float\)"),
        ("random_seed", True, TypeError, r"integer, got True \(bool\)"),
        ("random_seed", -1, ValueError, "from 0 to .*, got -1"),
        ("random_seed", 2**63, ValueError, "from 0 to"),
        ("enable_profiling", 3, TypeError, r"a str or a path, got 3 \(int\)"),
        ("enable_profiling", "", ValueError, "needs a folder"),
        ("execution_strategy", "B1", TypeError, r"got 'B1' \(str\). Write PipelinedExecution"),
        ("execution_strategy", PipelinedExecution, TypeError, r"\(type\)"),
    ],
)
def test_a_wrong_value_is_refused_at_once_and_changes_nothing(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    options = Options().device_iterations(10)
    with pytest.raises(error, match=words):
        getattr(options, name)(value)
    assert options == Options().device_iterations(10)


def test_every_goes_with_every_n_alone() -> None:
    with pytest.raises(ValueError, match="\"every_n\" only, got 'all'"):
        Options().output_mode("all", every=3)
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Options().output_mode("every_n", every=0)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("device_iteration", "Did you mean options.device_iterations?"),
        ("gradientAccumulation", "Did you mean options.gradient_accumulation?"),
        ("deviceIterations", "Write options.device_iterations(10)."),
        ("Training", "Write options.gradient_accumulation(10) for gradientAccumulation"),
        ("syncPattern", "There is nothing to set: it has no meaning on GPUs"),
        ("useIpuModel", "Call tfdist.pipeline.set_cpu_devices(4)"),
        ("profile_dir", "Write options.enable_profiling(directory)"),
        ("colour", "It has accumulation_reduction, device_iterations, enable_profiling"),
    ],
)
def test_a_name_that_options_do_not_have_is_told_what_to_write(name: str, advice: str) -> None:
    with pytest.raises(AttributeError) as error:
        getattr(Options(), name)
    assert str(error.value).startswith(f'Options has no "{name}". ')
    assert advice in str(error.value)


def test_the_advice_on_other_names_is_calls_that_options_take() -> None:
    named = set(re.findall(r"options\.(\w+)", " ".join(ADVICE.values())))
    assert all(hasattr(Options(), name) for name in named)
    for name in ADVICE:
        with pytest.raises(AttributeError, match=re.escape(ADVICE[name])):
            getattr(Options(), name)


def test_a_method_of_a_group_is_refused_as_its_group() -> None:
    with pytest.raises(AttributeError, match="gradient_accumulation"):
        Options().Training.gradientAccumulation(10)  # type: ignore[attr-defined]


def test_options_are_set_by_calls() -> None:
    options = Options()
    with pytest.raises(AttributeError, match=r"Write options.device_iterations\(10\)"):
        options.device_iterations = 10  # type: ignore[method-assign, assignment]
    with pytest.raises(AttributeError, match=r"Did you mean options.device_iterations\?"):
        options.device_iteration = 10  # type: ignore[attr-defined]
    assert options == Options()
