"""The names of `tf.compat.v1.estimator.experimental`, with the builders of v1 models' logits."""

from typing import Any

from tfdist.estimator import experimental
from tfdist.estimator.v1.model import dnn_logit_fn_builder, linear_logit_fn_builder

# __getattr__ returns all other names.
__all__ = ["dnn_logit_fn_builder", "linear_logit_fn_builder"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(experimental, name)


def __dir__() -> list[str]:
    return sorted({*experimental.__all__, *__all__})
