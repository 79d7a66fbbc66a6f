"""Versions and features of TensorFlow and Horovod as a line of JSON, for `tfdist doctor`."""

from __future__ import annotations

import ctypes
import json
import sys
from importlib import metadata
from typing import Any

import tensorflow as tf

from tfdist.strategies.horovod.strategy import HorovodNotFoundError, load_horovod


def main(*wanted: str) -> None:
    """Prints the answer on the last line of standard output; "horovod" loads Horovod as well."""
    answer = describe_tensorflow()
    if "horovod" in wanted:
        answer |= describe_horovod()
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


def describe_tensorflow() -> dict[str, Any]:
    """Returns versions, and the GPUs that TensorFlow sees."""
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return {
        "tensorflow": tf.__version__,
        # TensorFlow's Keras 2 has no `__version__`.
        "keras": getattr(tf.keras, "__version__", None) or metadata.version("tf-keras"),
        "gpus": [detail.get("device_name", "GPU") for detail in details],
    }


def describe_horovod() -> dict[str, Any]:
    """Returns what Horovod was built with, or why it cannot be loaded; nothing without it."""
    try:
        answer: dict[str, Any] = {"horovod": metadata.version("horovod")}
    except metadata.PackageNotFoundError:
        return {}
    try:
        hvd = load_horovod()
    except HorovodNotFoundError as error:
        return {**answer, "horovod_problem": str(error)}
    return {**answer, "has_mpi": bool(hvd.mpi_built()), **describe_libmpi()}


def describe_libmpi() -> dict[str, str]:
    """Returns the path of the MPI library in this process, and its own name and version."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi.so" in line]
    if not paths:
        return {}
    text = ctypes.create_string_buffer(8192)  # MPI_MAX_LIBRARY_VERSION_STRING, and more
    length = ctypes.c_int()
    # One of the few calls that are allowed before MPI_Init.
    ctypes.CDLL(paths[0]).MPI_Get_library_version(text, ctypes.byref(length))
    return {"libmpi": paths[0], "mpi": text.value.decode(errors="replace").split(",")[0]}
