"""Exporters: rules for the exports of train_and_evaluate, and for the exports to keep."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_flag, is_whole
from tfdist.estimator.config.arguments import argument_names, check_no_others
from tfdist.estimator.evaluation.eval_events import is_first_number, results_in
from tfdist.estimator.evaluation.saved_model import ReceiverFn, delete_all_but_newest, exports_in

Result = dict[str, Any]


class Exporter(ABC):
    """An entry of `EvalSpec.exporters`: may export the model after each evaluation."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The folder, below model_dir/export, that gets the exports; not empty."""

    @abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Result,
        is_the_final_export: bool,
    ) -> Any:
        """Exports a checkpoint that has just been evaluated.

        Args:
          estimator: The Estimator.
          export_path: model_dir/export/<name>.
          checkpoint_path: The checkpoint that was evaluated.
          eval_result: The return value of `evaluate`.
          is_the_final_export: Whether training has ended; never true without max_steps.

        Returns:
          The export's path; None if nothing was exported.
        """


class _SavedModelExporter(Exporter):
    """Base class of the exporters below: writes the SavedModel."""

    _exports_to_keep: int | None = None
    _has_exported = False

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: ReceiverFn | None,
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = check_flag("as_text", as_text)

    @property
    def name(self) -> str:
        return self._name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Result,
        is_the_final_export: bool,
    ) -> bytes | None:
        if not self._is_wanted(estimator, export_path, eval_result, is_the_final_export):
            return None
        path = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            assets_extra=self._assets_extra,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        delete_all_but_newest(export_path, self._exports_to_keep)
        self._has_exported = True
        return path

    def _is_wanted(
        self, estimator: Any, export_path: str, eval_result: Result, is_the_final_export: bool
    ) -> bool:
        return True


class FinalExporter(_SavedModelExporter):
    """Exports once, at the end of training; never exports without max_steps.

    Args:
      name: The folder below the export folder, and the name in logs.
      serving_input_receiver_fn: Returns a `tfdist.estimator.export.ServingInputReceiver` or a
        similar object, with the tensors that feed the model.
      assets_extra: A dict of path below "assets.extra" to the file that is copied there.
      as_text: Whether to write saved_model.pbtxt.
    """

    def _is_wanted(
        self, estimator: Any, export_path: str, eval_result: Result, is_the_final_export: bool
    ) -> bool:
        if is_the_final_export:
            v1.logging.info("Performing the final export in the end of training.")
        return is_the_final_export


class LatestExporter(_SavedModelExporter):
    """Exports after every evaluation.

    Args:
      name: The folder below the export folder, and the name in logs.
      serving_input_receiver_fn: Returns a `tfdist.estimator.export.ServingInputReceiver` or a
        similar object, with the tensors that feed the model.
      assets_extra: A dict of path below "assets.extra" to the file that is copied there.
      as_text: Whether to write saved_model.pbtxt.
      exports_to_keep: Older exports are deleted; None keeps all.

    Raises:
      ValueError: If exports_to_keep is below 1.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: ReceiverFn | None,
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._exports_to_keep = _checked_number(exports_to_keep)


def _loss_smaller(best_eval_result: Result, current_eval_result: Result) -> bool:
    """Returns whether the current loss is smaller than the best one."""
    for name, result in (
        ("best_eval_result", best_eval_result),
        ("current_eval_result", current_eval_result),
    ):
        if not result or "loss" not in result:
            raise ValueError(
                f"{name} cannot be empty or no loss is found in it: {result}. Give a compare_fn "
                "that needs no loss."
            )
    best, current = best_eval_result["loss"], current_eval_result["loss"]
    return bool(best > current or is_first_number(current, best))


class BestExporter(_SavedModelExporter):
    """Exports after an evaluation that is better than at the last export.

    The first call exports if there are no exports yet. After a restart, results are compared with
    the best one up to the last export, which is read from the event files of the evaluations.

    Args:
      name: The folder below the export folder, and the name in logs.
      serving_input_receiver_fn: Returns a `tfdist.estimator.export.ServingInputReceiver` or a
        similar object, with the tensors that feed the model.
      event_file_pattern: Event files below model_dir, from which the best earlier result is read
        at the first call for a model_dir; None reads no files.
      compare_fn: A function of `best_eval_result` and `current_eval_result`, both dicts of name to
        number. Returns whether the current one is better; by default, whether its loss is smaller.
      assets_extra: A dict of path below "assets.extra" to the file that is copied there.
      as_text: Whether to write saved_model.pbtxt.
      exports_to_keep: Older exports are deleted; None keeps all.

    Raises:
      ValueError: If compare_fn takes other arguments, or exports_to_keep is below 1.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: ReceiverFn | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._is_better = _checked_compare_fn(compare_fn)
        self._event_file_pattern = event_file_pattern
        self._exports_to_keep = _checked_number(exports_to_keep)
        self._model_dir: str | None = None
        self._best: Result | None = None

    def _is_wanted(
        self, estimator: Any, export_path: str, eval_result: Result, is_the_final_export: bool
    ) -> bool:
        if self._event_file_pattern and self._model_dir != estimator.model_dir:
            v1.logging.info("Loading best metric from event files.")
            self._model_dir = estimator.model_dir
            pattern = os.path.join(estimator.model_dir, self._event_file_pattern)
            exports = exports_in(export_path)
            # Later results, such as the current one, were not exported: they do not count.
            until_s = int(exports[-1]) + 1.0 if exports else math.inf
            self._best = _best_in_events(pattern, self._is_better, until_s)
            self._has_exported = self._has_exported or bool(exports)
        if (
            self._has_exported
            and self._best is not None
            and not self._is_better(best_eval_result=self._best, current_eval_result=eval_result)
        ):
            return False
        v1.logging.info("Performing best model export.")
        self._best = eval_result
        return True


def _best_in_events(pattern: str, is_better: Callable[..., bool], until_s: float) -> Result | None:
    """Returns the best of the evaluations in event files before a time, None if there are none."""
    best: Result | None = None
    for _, time_s, result in results_in(pattern):
        if time_s < until_s and (
            best is None or is_better(best_eval_result=best, current_eval_result=result)
        ):
            best = result
    return best


def _checked_compare_fn(compare_fn: Any) -> Callable[..., bool]:
    if compare_fn is None:
        raise ValueError("`compare_fn` must not be None.")
    needed = ("best_eval_result", "current_eval_result")
    for name in needed:
        if name not in argument_names(compare_fn):
            raise ValueError(f"compare_fn ({compare_fn}) must include {name} argument.")
    check_no_others("compare_fn", compare_fn, needed)
    checked: Callable[..., bool] = compare_fn
    return checked


def _checked_number(exports_to_keep: int | None) -> int | None:
    if exports_to_keep is not None and not (is_whole(exports_to_keep) and exports_to_keep > 0):
        raise ValueError(
            f"`exports_to_keep`, if provided, must be a positive number, got {exports_to_keep!r}."
        )
    return exports_to_keep
