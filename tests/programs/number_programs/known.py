"""The runs that are known to give other numbers; the list is to be empty.

A key is the name of a program, or a pattern of "library layout name"; the value says what comes.
"""

from __future__ import annotations

import fnmatch
from typing import Any

_OWN_LOSS = "a loss that nothing has divided: the gradient is as many times as large as replicas"
_OWN_LOGS = "all logs become means of replicas"
_TRACKED = "the tracked loss is divided by the replicas"
_WORDS = "each replica divides by its own number of words or weights"
_OUTPUTS = "the loss of an output counts replicas, not rows"
_ROWLESS = "a replica without rows does not take part"
_ADDED = "a sum that is added to the loss is scaled as a mean"
_ORDER = "Keras reads a batch to build the model, so the order is another one"
_NAN = "NaN in the history, where a replica has no row"
_NO_GRADIENT = "TensorFlow leaves the gradient of a depthwise kernel unset where there is no row"
_ONE_NUMBER = "a metric of one number for a batch counts each replica alike"
_SILENT = "no line says so"

KNOWN: dict[str, str] = {
    "compute_loss_of_its_docstring": _OWN_LOSS,
    "compute_loss_of_its_docstring_and_even_batches": _OWN_LOSS,
    "compute_loss_with_a_tracker": _OWN_LOSS,
    "compute_loss_of_keras_plus_a_term_of_weights": _OWN_LOSS,
    "compute_loss_of_keras_plus_a_term_of_rows": _OWN_LOSS,
    "compute_metrics_adds_a_number": _OWN_LOGS,
    "compute_metrics_adds_a_mean_of_rows": _OWN_LOGS,
    "compute_metrics_adds_a_metric": _OWN_LOGS,
    "compute_metrics_leaves_one_out": _OWN_LOGS,
    "train_step_of_the_guide": _TRACKED,
    "train_step_of_the_guide_and_even_batches": _TRACKED,
    "train_step_of_the_guide_with_weights_of_rows": _TRACKED,
    "train_step_of_the_guide_of_tf_keras": _TRACKED,
    "train_step_with_trackers": _TRACKED,
    "train_step_with_trackers_that_are_not_in_metrics": _TRACKED,
    "train_step_that_returns_its_loss": _TRACKED,
    "train_step_that_divides_its_loss_itself": _TRACKED,
    "train_step_whose_loss_nothing_divides": _OWN_LOSS,
    "train_step_that_returns_a_number_for_each_row": "ends in a stack",
    "test_step_of_the_guide": _TRACKED,
    "gan_with_two_optimizers": _TRACKED,
    "counter_in_a_train_step": _ROWLESS,
    "counter_in_a_call": _ROWLESS,
    "random_numbers_of_replicas": "workers draw equal numbers",
    "keras * py_dataset": "now and then the second epoch begins late",
    "keras * py_dataset_whose_rows_change_at_the_end_of_an_epoch": "the same",
    "keras * py_dataset_to_validate_with": "the same",
    "py_dataset_read_ahead_while_the_step_is_traced": "the second epoch begins late",
    "py_dataset_shuffled": _ORDER,
    "dataset_shuffled_with_a_seed": _ORDER,
    "dataset_shuffled_after_a_cache": _ORDER,
    "keras * rows_without_a_target": "a dataset of rows alone ends in a stack",
    "tf_keras * rows_without_a_target": _NAN,
    "keras 1x2 own_datasets_of_workers_without_a_number_of_steps": "the loss counts too many rows",
    "keras 2x2 own_datasets_of_workers_without_a_number_of_steps": "the loss counts too many rows",
    "own_datasets_whose_known_batch_sizes_differ": "each replica counts alike",
    "masked_sequences": _WORDS,
    "masked_sequences_with_weights_of_rows": _WORDS,
    "masked_sequences_with_weights_of_words": _WORDS,
    "masked_sequences_and_a_batch_without_a_word": _WORDS,
    "masked_series": _WORDS,
    "masked_series_through_time_distributed": _WORDS,
    "ignored_class": _WORDS,
    "reduction_mean_with_sample_weight_with_weights": _WORDS,
    "reduction_none": "the loss in the history is as many times as large as replicas",
    "reduction_none_of_even_batches": "the loss in the history is as many times as large",
    "reduction_none_with_weights": "the loss in the history is as many times as large",
    "reduction_none_of_words": "the loss in the history is as many times as large",
    "tf_keras * reduction_sum": "the loss in the history is another one where rows are uneven",
    "tf_keras * reduction_sum_with_weights": "the same",
    "tf_keras * loss_that_returns_one_number": _NAN,
    "tf_keras * add_loss_of_a_mean_of_rows": _NAN,
    "add_loss_of_a_model": _NAN,
    "add_metric_of_a_model": _NAN,
    "add_metric_of_a_layer": _NAN,
    "sparse_features_of_keras_3": "a replica without rows ends in a stack",
    "sparse_features": "a replica without rows ends in a stack",
    "loss_ctc": "a replica without rows ends in a stack",
    "loss_dice_of_a_batch": _SILENT,
    "loss_tversky_of_a_batch": _SILENT,
    "loss_circle_of_pairs": _SILENT,
    "loss_of_pairs_of_rows": _SILENT,
    "outputs_by_name": _OUTPUTS,
    "outputs_with_weights_of_losses": _OUTPUTS,
    "outputs_with_weights_of_rows": _OUTPUTS,
    "outputs_in_a_list": _OUTPUTS,
    "outputs_with_a_summed_loss": _OUTPUTS,
    "add_loss_of_a_sum_of_rows": _ADDED,
    "add_loss_of_a_number_for_each_row": _ADDED,
    "metric_of_a_maximum": _SILENT,
    "metric_that_counts_batches": _SILENT,
    "stateful_lstm": "states of replicas are averaged",
    "stateful_gru": "states of replicas are averaged",
    "batch_normalization_over_all_rows": _ROWLESS,
    "batch_normalization_over_all_rows_evaluated": _ROWLESS,
    "batch_normalization_over_all_words": "the statistics of words are those of a replica",
    "separable_and_depthwise_conv_1d": _NO_GRADIENT,
    "separable_and_depthwise_conv_2d": _NO_GRADIENT,
    "tf_keras * masked_sequences_with_a_summed_loss": "the loss in the history is another one",
    "keras * metric_that_is_a_function_of_one_number": _ONE_NUMBER,
    "tf_keras * metric_that_is_a_function_of_one_number": _NAN,
    "keras * outputs_without_a_column": _ONE_NUMBER,
    "tf_keras * outputs_without_a_column": _NAN,
    "tf_keras 2x2 optimizer_*_decay": "a worker without rows keeps the rate of the step before",
    "stateful_simple_rnn_that_is_reset": "states of replicas are averaged",
    "spectral_normalization": "it is refused",
}


# Programs in which a worker fails or waits for good; they are not made on several workers.
STOPPING = {
    "train_step_that_returns_a_number_for_each_row",
    "loss_ctc",
    "sparse_features",
    "sparse_features_of_keras_3",
}


def is_made(run: Any) -> bool:
    """Returns whether a run can be made without an end of its layout."""
    return run.layout == "1x2" or run.name not in STOPPING


def reason_of(run: Any) -> str:
    """Returns what is known to be wrong with a run; "" if nothing is."""
    if run.name in KNOWN:
        return KNOWN[run.name]
    found = (why for key, why in KNOWN.items() if fnmatch.fnmatchcase(str(run), key))
    return next(found, "")
