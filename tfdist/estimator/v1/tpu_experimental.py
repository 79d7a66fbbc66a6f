"""`tf.compat.v1.estimator.tpu.experimental`: its only name is for TPUs, and says so when used."""

from typing import Any

from tfdist.estimator.missing import find_missing

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    return find_missing("tpu.experimental", name)
