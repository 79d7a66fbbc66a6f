"""What a process that imports TensorFlow sees: asked of a child, since we do not import it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tfdist.launch.doctor.children import Ended, run_child
from tfdist.launch.python_command import python_command

_LIMIT_S = 120.0  # a cold disk and a busy machine: TensorFlow is a gigabyte


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What `tfdist.strategies.survey` printed.

    Attributes:
      problem: Why there is nothing of all this, in one line; "" if there is.
      tensorflow: TensorFlow's version.
      keras: The version of what `tf.keras` is in a tfdist program.
      has_cuda: Whether TensorFlow was built for CUDA.
      gpus: The names of the GPUs that TensorFlow sees.
      horovod: Horovod's version; None if it is not installed.
      horovod_problem: Why Horovod cannot be loaded; "" if it can.
      has_mpi: Whether Horovod was built with MPI.
      has_gloo: Whether Horovod was built with gloo.
      has_nccl: Whether Horovod was built with NCCL.
      libmpi: The path of the MPI library that Horovod loads.
      mpi: What that library says about its version.
    """

    problem: str = ""
    tensorflow: str | None = None
    keras: str | None = None
    has_cuda: bool = False
    gpus: tuple[str, ...] = ()
    horovod: str | None = None
    horovod_problem: str = ""
    has_mpi: bool = False
    has_gloo: bool = False
    has_nccl: bool = False
    libmpi: str | None = None
    mpi: str | None = None


async def ask_tensorflow(*, with_horovod: bool) -> Survey:
    """Starts the process and reads its answer."""
    command = python_command("tfdist.strategies.survey", *(["horovod"] if with_horovod else []))
    return read_survey(await run_child(command, survey_environment(os.environ), limit_s=_LIMIT_S))


def survey_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which TensorFlow says what it is in a tfdist program."""
    # Importing tfdist.estimator chooses Keras 2 unless the user has chosen.
    return {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environ}


def read_survey(ended: Ended) -> Survey:
    """Reads the last line of the process, or why there is none."""
    if ended.exit_code is None:
        return Survey(problem=f"it was not done after {ended.seconds:.0f} s")
    if ended.exit_code != 0:
        return Survey(problem=ended.last_line)
    answer = json.loads(ended.stdout.splitlines()[-1])
    known = {field.name for field in fields(Survey)}
    answer = {name: value for name, value in answer.items() if name in known}
    return Survey(**{**answer, "gpus": tuple(answer["gpus"])})
