"""Names of precisions: the dtypes in which a model computes and has its weights."""

from __future__ import annotations

import difflib
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

# The original's names for them: compute.weights, in bits.
_ALIASES = {"32.32": "float32", "16.32": "mixed_float16", "16.16": "float16"}

# What a processor that computes in bfloat16 has, in Linux' list of its features.
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The precision of a model."""

    name: str  # Its name, also of tf_keras' policy.
    compute: tf.DType  # The dtype of the forward and the backward pass.
    weights: tf.DType  # The dtype of the trainable weights.

    @property
    def is_float32(self) -> bool:
        return self.compute == tf.float32

    @property
    def has_half_weights(self) -> bool:
        return self.weights != tf.float32


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision(name="float32", compute=tf.float32, weights=tf.float32),
        Precision(name="mixed_float16", compute=tf.float16, weights=tf.float32),
        Precision(name="mixed_bfloat16", compute=tf.bfloat16, weights=tf.float32),
        Precision(name="float16", compute=tf.float16, weights=tf.float16),
        Precision(name="bfloat16", compute=tf.bfloat16, weights=tf.bfloat16),
    )
}


def find_precision(name: Any) -> Precision:
    """Returns the precision of a name, which may be one of the original's.

    Raises:
      ValueError: If there is no precision of this name.
    """
    known = _ALIASES.get(name, name) if isinstance(name, str) else None
    if known in PRECISIONS:
        return PRECISIONS[known]
    if name == "32.16":
        raise ValueError(
            'precision "32.16" would compute in float32 with weights that have lost half their '
            'digits. Use "32.32", "16.32" or "16.16".'
        )
    near = difflib.get_close_matches(str(name), [*PRECISIONS, *_ALIASES], 1)
    raise ValueError(
        f"precision must be one of {', '.join(PRECISIONS)} (or {', '.join(_ALIASES)}), got "
        f"{name!r}.{f' Did you mean {near[0]!r}?' if near else ''}"
    )


def describe_emulation(
    precision: Precision, device_kind: str, features: Collection[str]
) -> str | None:
    """Returns a line for the log where a device computes a half precision in float32.

    On CPUs float16 is always emulated: TensorFlow's packages are built without AVX512-FP16. GPUs
    have both halves. The processor's features are empty if they are not known.
    """
    half = precision.compute.name
    if precision.is_float32 or device_kind != "CPU":
        return None
    if half == "float16":
        return (
            "float16 is emulated on this CPU: a step takes longer than in float32, with "
            "convolutions about 17 times as long."
        )
    if not features or not _BFLOAT16.isdisjoint(features):
        return None
    return "bfloat16 is emulated on this CPU: a step takes longer than in float32."


def processor_features() -> frozenset[str]:
    """Returns the features of this machine's processor; none where the system has no list."""
    if platform.system() != "Linux":
        return frozenset()
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", _cpuinfo(), re.MULTILINE)
    return frozenset(listed[1].split()) if listed else frozenset()


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
