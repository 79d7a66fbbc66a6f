"""Methods that the original adds to Keras' models, in programs of TensorFlow 2.

What they set for an IPU has no effect here, which is logged. What changes the numbers is refused,
with what to write.
"""

from __future__ import annotations

import sys
from typing import Any

from tfdist.ipu.without_effect import log_without_effect

_LIBRARIES = ("keras", "tf_keras")
_WITHOUT_EFFECT = (
    "set_asynchronous_callbacks",
    "set_infeed_queue_options",
    "set_outfeed_queue_options",
)
_ACCUMULATION = (
    "give Keras 3's optimizer gradient_accumulation_steps=n, which averages the gradients of n "
    "steps, or take batches that are n times as large"
)
_PIPELINES = (
    "stages of a model are those of an Estimator: return an IPUPipelineEstimatorSpec from model_fn"
)
_REFUSED = {
    "set_gradient_accumulation_options": _ACCUMULATION,
    "set_pipelining_options": _PIPELINES,
    "set_pipeline_stage_assignment": _PIPELINES,
    "get_pipeline_stage_assignment": _PIPELINES,
    "reset_pipeline_stage_assignment": _PIPELINES,
    "print_pipeline_stage_assignment_summary": _PIPELINES,
    "export_for_ipu_serving": "write model.export(folder) or tf.saved_model.save(model, folder)",
}


def add_methods_to_models() -> None:
    """Adds the original's methods to the models of the Keras libraries that are imported."""
    for library in _LIBRARIES:
        model = getattr(sys.modules.get(library), "Model", None)
        if model is not None:
            for name in (*_WITHOUT_EFFECT, *_REFUSED):
                setattr(model, name, _method(name))


def _method(name: str) -> Any:
    def method(self: Any, *args: Any, **options: Any) -> None:
        """Logs that the options have no effect, or raises an error that says what to write."""
        if name in _REFUSED:
            raise NotImplementedError(
                f"{name} of a Keras model is not supported; {_REFUSED[name]}."
            )
        log_without_effect(name, sorted(options) or ["its options"])

    return method
