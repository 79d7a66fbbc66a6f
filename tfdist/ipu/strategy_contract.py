"""Names, a contract and methods that the strategies of the original have and tfdist's have not.

What Keras' models set for an IPU has no effect here, which is logged. What changes the numbers is
refused, with what to write.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from tfdist.cluster.instances import instance_index, num_instances
from tfdist.ipu.config import IPUConfig
from tfdist.ipu.without_effect import log_without_effect
from tfdist.strategies.base import BaseStrategy

Strategy = TypeVar("Strategy", bound=BaseStrategy)

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


def device_for(ipu_device: str) -> str | None:
    """Returns None, this machine's own device, for "/device:IPU:0"; other names stay.

    Raises:
      ValueError: If it is another IPU than the first: a worker has one device.
    """
    if "IPU" not in ipu_device.upper():
        return ipu_device
    if not ipu_device.endswith(":0"):
        raise ValueError(
            f"ipu_device is {ipu_device!r}, and a worker has one device here. Use "
            "'/device:IPU:0' (this machine's GPU, or a second logical CPU), or a GPU's name."
        )
    return None


def with_originals_contract(strategy: Strategy, name: str, **options: bool) -> Strategy:
    """Returns the strategy with the original's contract for datasets, and its methods.

    The original's name for it is in the line that names options of False, which have no effect.
    """
    log_without_effect(name, [option for option in options if not options[option]])
    add_methods_to_models()
    strategy.extended.divides_batches = False
    add_originals_methods(strategy)
    return strategy


def add_originals_methods(strategy: BaseStrategy) -> None:
    """Gives a strategy the methods that only the original's have."""
    strategy.experimental_run_v2 = strategy.run
    strategy.update_ipu_config = update_ipu_config


def update_ipu_config(config: IPUConfig) -> None:
    """Writes the number of instances and this one's index into device options.

    They have no effect here: the strategy asks for them itself.
    """
    config.note_instance(num_instances(), instance_index())


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
