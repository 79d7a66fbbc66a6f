"""Exit codes of a worker, by which its launcher learns why it ended.

After a code below 128 a new start would end in the same way. After a code from 128 on it may
succeed; Kubeflow's restart policy "ExitCode" follows the same rule.
"""

BAD_CONFIGURATION = 2  # as argparse has it
NO_SPACE = 28  # as Linux numbers the error: no room for a checkpoint
SAVED_AND_STOPPED = {"SIGUSR1": 138, "SIGTERM": 143}  # 128 + the signal's number
LOST_WORKER = 200  # another worker ended; this one did nothing wrong
PORT_TAKEN = 201  # another process took this worker's port first
NEVER_AGAIN = (BAD_CONFIGURATION, NO_SPACE)  # the cause stays until a person fixes it
