"""Exit codes by which a worker tells whoever started it why it ended.

Codes below 128 are for good: starting the same again would end the same way. From 128 on, a new
start may go well; Kubeflow's restart policy "ExitCode" reads them so, too.
"""

BAD_CONFIGURATION = 2  # as argparse has it
SAVED_AND_STOPPED = {"SIGUSR1": 138, "SIGTERM": 143}  # 128 + the signal's number
LOST_WORKER = 200  # another worker went away: not this one's fault
PORT_TAKEN = 201  # somebody took this worker's port before it could
