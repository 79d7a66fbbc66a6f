"""Advice for the user about the failure of a worker."""

from __future__ import annotations

import re
import signal

from tfdist.launch.failures.failure import Failure, signal_of_code
from tfdist.launch.failures.startup_lines import is_startup_line
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    CANNOT_RUN,
    LOST_WORKER,
    NO_SPACE,
    NOT_FOUND,
    PORT_TAKEN,
)

_MEMORY = "Memory ran out: use smaller batches, fewer workers on a machine, or a larger machine."
_KILLED = (
    "If it was not killed on purpose, memory ran out (`dmesg` tells): use smaller batches, fewer "
    "workers on a machine, or a larger machine."
)
_PORT = (
    "The port was taken by another program: start again, or leave the choice of ports to tfdist."
)
_SPACE = "Free space where the model and the logs are written; the last whole checkpoint is kept."
# Exit codes with advice that needs no look at the output.
_CODES = {
    BAD_CONFIGURATION: (
        "Fix the error in the last lines; a wrong configuration is never tried again."
    ),
    NO_SPACE: _SPACE,
    NOT_FOUND: "Check the command after `--`: is it spelled right, and on PATH on every host?",
    CANNOT_RUN: "Make the command executable, or put its interpreter in front of it.",
    PORT_TAKEN: _PORT,
    LOST_WORKER: (
        "No worker failed by itself: look at the network between the hosts, and at all logs."
    ),
}
# Patterns in the output of programs, with the advice for each. The first match is used.
_SIGNS = (
    (
        r"module 'tensorflow\S*' has no attribute 'estimator'"
        r"|No module named 'tensorflow[_.]estimator"
        r"|cannot import name 'estimator' from 'tensorflow",
        "TensorFlow has no tf.estimator since 2.16. Let the program begin with two lines, and "
        "leave the rest as it is: `import tfdist.estimator` and "
        "`tfdist.estimator.enable_compat()`.",
    ),
    (
        r"module 'tensorflow\S*' has no attribute 'contrib'|No module named 'tensorflow.contrib"
        r"|cannot import name 'contrib' from 'tensorflow",
        "tf.contrib ended with TensorFlow 1. Use the names of today: tfdist.estimator for "
        "Estimators, tf.keras and tf.compat.v1 for layers, optimizers and metrics.",
    ),
    (
        r"NanLossDuringTrainingError|GradientsNotFiniteError|loss of worker .* became NaN",
        "The loss became NaN: lower the learning rate or warm it up, clip the gradients "
        "(ClippedOptimizer), and in half precision scale the loss (LossScaleOptimizer).",
    ),
    (
        r"\(PerReplica:\{|values\.PerReplica'>\) to a Tensor",
        "Keras 3 does not train under TensorFlow's own strategies for several workers. Change one "
        "line: strategy = tfdist.strategies.strategy_for_run()",
    ),
    (
        r"/dev/shm|vader_segment|ORTE_ERROR_LOG: Out of resource",
        "Shared memory ran out: enlarge /dev/shm (`df -h /dev/shm` shows its size; in a container "
        "--shm-size, in a pod a larger emptyDir of medium Memory).",
    ),
    (r"No space left on device|Disk quota exceeded", _SPACE),
    (
        r"MemoryError|Cannot allocate memory|std::bad_alloc|OOM when allocating"
        r"|ResourceExhaustedError|RESOURCE_EXHAUSTED|Unable to allocate",
        _MEMORY,
    ),
    (r"Address already in use|EADDRINUSE", _PORT),
    (
        r"ModuleNotFoundError|No module named",
        "Every worker runs in the environment of the launcher: install what is missing there, on "
        "every host.",
    ),
    (
        r"can't open file|No such file or directory",
        "Check the path; relative ones begin in the folder in which the launcher was started, on "
        "every host.",
    ),
    (r"Permission denied", "Check who may read and write that path."),
    (
        r"libcuda|CUDA_ERROR|cuInit|CUDNN_STATUS",
        "Check the GPUs and their drivers: `tfdist doctor` shows what TensorFlow finds.",
    ),
)
_NATIVE = "Native code crashed: start again with PYTHONFAULTHANDLER=1 to see the Python line."
_REQUESTED = "Another process ended it: a batch system, another user, or a limit of the machine."
_SIGNALS: dict[int | None, str] = {
    **dict.fromkeys(
        (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE), _NATIVE
    ),
    **dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT), _REQUESTED),
}


def advice(failure: Failure) -> str:
    """Returns one or two sentences of advice for the user; "" if there is none."""
    if failure.kind == "stalled":
        return _stall_advice(failure)
    if failure.kind == "silent":
        return (
            f"Check that {failure.host} runs and that its network works; what it printed last may "
            "not have come through."
        )
    if failure.kind == "ended early":
        return (
            "Give every worker equally many steps: its input may have ended early, or its program "
            "left without training."
        )
    if failure.kind == "caught":
        return (
            "Fix that error. The others cannot go on without this worker: a program that catches "
            "the error of a training should end with it on every worker."
        )
    if failure.kind == "exited" and failure.code in _CODES:
        return _CODES[failure.code]
    number = failure.code if failure.kind == "signal" else signal_of_code(failure.code or 0)
    if number == signal.SIGKILL:
        return _KILLED
    lines = [line for line in failure.log_tail if not is_startup_line(line)]
    text = "\n".join([*lines, *failure.mpirun_lines])
    hints = (hint for pattern, hint in _SIGNS if re.search(pattern, text))
    return next(hints, _SIGNALS.get(number, ""))


def _stall_advice(failure: Failure) -> str:
    longer = "Steps that may take so long need a longer --stall-timeout."
    if "SIGSTOP" in failure.detail:
        return f"The process was stopped: by a debugger, Ctrl-Z, or kill -STOP. {longer}"
    return f"While it hangs, `py-spy dump --pid` shows where. {longer}"
