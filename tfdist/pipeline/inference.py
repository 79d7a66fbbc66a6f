"""inference_model: a model whose forward pass runs in a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.pipeline.compiled_calls import CompiledCalls
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import Settings


class InferenceModel:
    """A model whose calls only compute its outputs. Made by `inference_model`.

    Attributes:
      model: The model as it was given; its variables are the weights, also of those who train it.
    """

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.model = model
        self._calls = CompiledCalls(model, options, user="an inference model", make_update=None)

    @property
    def settings(self) -> Settings:
        """How the model runs."""
        return self._calls.settings

    def __call__(self, *arguments: Any) -> Any:
        """Computes the outputs, with the weights as they are now.

        The first call, and the first with samples of another shape, builds the graph.

        Args:
          *arguments: What the model's forward pass takes: arrays or tensors, or structures of
            these, each [samples, ...] with as many samples: micro-batch x device_iterations x
            replication_factor.

        Returns:
          What the forward pass returns, by default of all samples: [samples, ...]; scalars one for
          each micro-batch.

        Raises:
          ValueError: If the samples do not split, or blocks, stages and options do not fit.
        """
        return self._calls(arguments)


def inference_model(model: Callable[..., Any], options: Options) -> InferenceModel:
    """Makes a model whose forward pass runs in a pipeline.

    Args:
      model: The forward pass. If it takes an argument `training`, it gets False.
      options: How it runs, with gradient_accumulation 1; frozen by this.

    Raises:
      TypeError: If an argument is of another kind.
      ValueError: If the options do not go together.
    """
    return InferenceModel(model, options)
