"""`tf.estimator.experimental`: early stopping, evaluation inside training, and more."""

from tfdist.estimator.checkpoint_step import make_stop_at_checkpoint_step_hook
from tfdist.estimator.early_stopping import (
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tfdist.estimator.export.receivers import build_raw_supervised_input_receiver_fn
from tfdist.estimator.in_memory_evaluator import InMemoryEvaluatorHook
from tfdist.estimator.logit_fns import call_logit_fn

__all__ = [
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
