"""Exit codes of a worker, by which its launcher learns why it ended.

After a code below 128 a new start would end in the same way. After a code from 128 on it may
succeed; Kubeflow's restart policy "ExitCode" follows the same rule.
"""

BAD_CONFIGURATION = 2  # as argparse has it
NO_SPACE = 28  # as Linux numbers the error: no room for a checkpoint
SAVED_AND_STOPPED = {"SIGUSR1": 138, "SIGTERM": 143}  # 128 + the signal's number
STOP_CODES = tuple(SAVED_AND_STOPPED.values())
LOST_WORKER = 200  # another worker ended; this one did nothing wrong
PORT_TAKEN = 201  # another process took this worker's port first
NEVER_AGAIN = (BAD_CONFIGURATION, NO_SPACE)  # the cause stays until a person fixes it

# As of shells and `timeout`.
TOOK_TOO_LONG = 124
CANNOT_RUN = 126
NOT_FOUND = 127
INTERRUPTED = 130  # 128 + SIGINT


def shell_code(code: int) -> int:
    """Returns the exit code that a shell would report: 128 + n for -n, the signal n."""
    return code if code >= 0 else 128 - code
