"""The moments of exporters, what they keep, and what train_and_evaluate does with them."""

import functools
import itertools
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.evaluation import saved_model


def estimator_in(model_dir: Path) -> Any:
    """Stands in for an Estimator; its exports are numbered."""
    estimator = mock.Mock(spec=tfe.Estimator)
    estimator.model_dir = str(model_dir)
    estimator.export_saved_model.side_effect = itertools.count(1)
    return estimator


def make_folders(base: Path, *names: str) -> None:
    for name in names:
        (base / name / "variables").mkdir(parents=True)


def names_in(base: Path) -> list[str]:
    return sorted(path.name for path in base.iterdir())


def receiver() -> Any:
    x = v1.placeholder(tf.float32, [None, 2])
    return tfe.export.ServingInputReceiver({"x": x}, {"x": x})


# Latest and final.


def test_every_exporter_passes_on_what_to_export(tmp_path: Path) -> None:
    what: dict[str, Any] = {"assets_extra": {"a": "b"}, "as_text": True}
    for exporter in (
        tfe.LatestExporter("n", receiver, **what),
        tfe.FinalExporter("n", receiver, **what),
        tfe.BestExporter("n", receiver, **what),
    ):
        assert isinstance(exporter, tfe.Exporter)
        assert exporter.name == "n"
        estimator = estimator_in(tmp_path)
        assert exporter.export(estimator, str(tmp_path), "ckpt", {"loss": 1.0}, True) == 1
        estimator.export_saved_model.assert_called_once_with(
            str(tmp_path), receiver, assets_extra={"a": "b"}, as_text=True, checkpoint_path="ckpt"
        )


def test_the_final_exporter_exports_only_at_the_end(tmp_path: Path, logged: list[str]) -> None:
    exporter = tfe.FinalExporter(name="final", serving_input_receiver_fn=receiver)
    estimator = estimator_in(tmp_path)
    assert exporter.export(estimator, "path", "ckpt", {}, False) is None
    assert not estimator.export_saved_model.called
    assert exporter.export(estimator, "path", "ckpt", {}, True) == 1
    assert "Performing the final export in the end of training." in logged


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (1, ["1000000003"]),
        (3, ["1000000001", "1000000002", "1000000003"]),
        (None, ["0999999999", "1000000001", "1000000002", "1000000003"]),
    ],
)
@pytest.mark.parametrize("kind", [tfe.LatestExporter, tfe.BestExporter])
def test_only_the_newest_exports_are_kept(
    tmp_path: Path, kind: Any, keep: int | None, left: list[str]
) -> None:
    others = ["100", "10000000000", "newest", "temp-1000000000"]
    exports = ["1000000003", "1000000001", "0999999999", "1000000002"]
    make_folders(tmp_path, *others, *exports)
    exporter = kind("n", receiver, exports_to_keep=keep)
    exporter.export(estimator_in(tmp_path), str(tmp_path), "ckpt", {"loss": 1.0}, False)
    assert names_in(tmp_path) == sorted(others + left)


@pytest.mark.parametrize("kind", [tfe.LatestExporter, tfe.BestExporter])
def test_no_export_to_keep_is_refused(kind: Any) -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match="positive number"):
            kind("n", receiver, exports_to_keep=number)


def test_an_exporter_needs_a_name_and_an_export() -> None:
    class Half(tfe.Exporter):
        name = "half"

    with pytest.raises(TypeError, match="export"):
        Half()  # type: ignore[abstract]


# Best.


@pytest.fixture
def offer(tmp_path: Path) -> Callable[..., list[bool]]:
    """Offers losses to an exporter, one after the other; says which ones were exported."""

    def offer(exporter: tfe.Exporter, *losses: float, model_dir: Path = tmp_path) -> list[bool]:
        base = tmp_path / "exports"
        base.mkdir(exist_ok=True)
        estimator = estimator_in(model_dir)
        return [
            exporter.export(estimator, str(base), "ckpt", {"loss": loss}, False) is not None
            for loss in losses
        ]

    return offer


def test_the_best_exporter_exports_what_is_better_than_before(
    offer: Any, logged: list[str]
) -> None:
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver)
    assert exporter.name == "best_exporter"
    assert offer(exporter, 0.5, 0.6, 0.5, 0.4, 0.45) == [True, False, False, True, False]
    assert logged.count("Loading best metric from event files.") == 1
    assert logged.count("Performing best model export.") == 2


def test_any_loss_is_better_than_none(offer: Any) -> None:
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver)
    assert offer(exporter, math.nan, math.nan, 0.5, math.nan) == [True, False, True, False]


def write_losses(folder: Path, *losses: float, time_s: int = 0) -> None:
    """Writes an evaluation a second, the first one at `time_s`."""
    with tf.Graph().as_default(), v1.summary.FileWriter(str(folder)) as writer:
        for step, loss in enumerate(losses):
            summary = v1.Summary()
            summary.value.add(tag="loss", simple_value=loss)
            summary.value.add(tag="other", tensor=tf.make_tensor_proto([1.0]))
            writer.add_event(v1.Event(wall_time=time_s + step, step=step, summary=summary))
            writer.add_summary(v1.Summary(), step)
            writer.add_session_log(v1.SessionLog(status=v1.SessionLog.START), step)


def test_where_nothing_was_exported_the_first_result_is(tmp_path: Path, offer: Any) -> None:
    # As in tf.estimator 2.15: the best earlier result is read, and the first call replaces it.
    write_losses(tmp_path / "eval", 0.5, 0.3, 0.4)
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver)
    assert offer(exporter, 0.9, 0.95, 0.8) == [True, False, True]


def test_after_a_restart_results_are_compared_with_what_was_exported(
    tmp_path: Path, offer: Any
) -> None:
    def is_smaller(*, current_eval_result: Any, best_eval_result: Any) -> bool:
        return bool(current_eval_result["loss"] < best_eval_result["loss"])

    # The last export is that of the loss 0.25, which came before it; 0.375 and 0.125 came later.
    make_folders(tmp_path / "exports", "1000000000", "1000000011")
    write_losses(tmp_path / "eval", 0.5, 0.25, 0.375, 0.125, time_s=1000000010)
    for losses, expected in (([0.125], [True]), ([0.375, 0.25, 0.2], [False, False, True])):
        exporter = tfe.BestExporter("n", receiver, compare_fn=is_smaller)
        assert offer(exporter, *losses) == expected


def test_a_new_model_dir_brings_its_own_best_result(tmp_path: Path, offer: Any) -> None:
    write_losses(tmp_path / "a" / "eval", 0.5, 0.3, 0.4)
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver)
    assert offer(exporter, 9.0, model_dir=tmp_path / "b") == [True]
    assert offer(exporter, 0.35, 0.25, model_dir=tmp_path / "a") == [False, True]
    assert offer(exporter, 9.0, model_dir=tmp_path / "b") == [True]


def test_event_files_may_be_elsewhere_or_nowhere(tmp_path: Path, offer: Any) -> None:
    write_losses(tmp_path / "eval_test", 0.3)
    pattern = "eval_test/*.tfevents.*"
    for event_file_pattern, expected in ((pattern, False), (None, True)):
        exporter = tfe.BestExporter("n", receiver, event_file_pattern)
        assert offer(exporter, 9.0, model_dir=tmp_path / "b") == [True]
        assert offer(exporter, 0.5) == [expected]


def test_a_torn_event_file_is_read_as_far_as_it_goes(tmp_path: Path, offer: Any) -> None:
    write_losses(tmp_path / "eval", 0.3, 0.9)
    (file,) = (tmp_path / "eval").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver)
    assert offer(exporter, 9.0, model_dir=tmp_path / "b") == [True]
    assert offer(exporter, 0.5, 0.2) == [False, True]


def test_a_comparison_of_ones_own_decides(offer: Any) -> None:
    seen = []

    def larger(best_eval_result: Any, current_eval_result: Any) -> bool:
        seen.append((best_eval_result["loss"], current_eval_result["loss"]))
        return bool(best_eval_result["loss"] < current_eval_result["loss"])

    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver, compare_fn=larger)
    assert offer(exporter, 1.0, 2.0, 1.5) == [True, True, False]
    assert seen == [(1.0, 2.0), (2.0, 1.5)]


def test_a_comparison_must_take_the_two_results() -> None:
    def compare(best_eval_result: Any, current_eval_result: Any, margin: float) -> bool:
        return bool(best_eval_result["loss"] > current_eval_result["loss"] + margin)

    for function, message in (
        (None, "`compare_fn` must not be None"),
        (lambda best_eval_result: True, "must include current_eval_result argument"),
        (lambda current_eval_result: True, "must include best_eval_result argument"),
        (compare, r"not expected args: \['margin'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            tfe.BestExporter(compare_fn=function)
    tfe.BestExporter(compare_fn=functools.partial(compare, margin=0.1))


def test_comparing_losses_needs_losses(tmp_path: Path) -> None:
    exporter = tfe.BestExporter(serving_input_receiver_fn=receiver, exports_to_keep=None)
    estimator = estimator_in(tmp_path)
    exporter.export(estimator, "path", "ckpt", {"loss": 1.0}, False)
    with pytest.raises(ValueError, match="current_eval_result cannot be empty or no loss"):
        exporter.export(estimator, "path", "ckpt", {"auc": 1.0}, False)


# With train_and_evaluate.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a second between exports, without waiting for it."""
    seconds = itertools.count(1700000000)
    fake = types.SimpleNamespace(time=lambda: next(seconds), sleep=lambda seconds: None)
    monkeypatch.setattr(saved_model, "time", fake)


@pytest.mark.usefixtures("clock")
def test_exporters_export_the_checkpoint_that_was_evaluated(
    tmp_path: Path, dense: Any, numbers: Any
) -> None:
    config = tfe.RunConfig(save_checkpoints_steps=2)
    estimator = tfe.Estimator(dense(), tmp_path, config)
    metrics, exports = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(numbers(), max_steps=8),
        tfe.EvalSpec(
            numbers(),
            steps=2,
            throttle_secs=0,
            exporters=[
                tfe.LatestExporter("latest", receiver, exports_to_keep=2),
                tfe.FinalExporter("final", receiver),
                tfe.BestExporter("best", receiver, exports_to_keep=None),
            ],
        ),
    )
    assert metrics is not None and exports is not None
    # The loss falls at each evaluation, at steps 2, 4, 6 and 8: each is the best so far.
    exported = {
        name: [
            int(tf.train.load_variable(str(path / "variables" / "variables"), "global_step"))
            for path in sorted((tmp_path / "export" / name).iterdir())
        ]
        for name in names_in(tmp_path / "export")
    }
    assert exported == {"latest": [6, 8], "final": [8], "best": [2, 4, 6, 8]}
    for name, path in zip(("latest", "final", "best"), exports, strict=True):
        assert Path(path.decode()) == max((tmp_path / "export" / name).iterdir())
