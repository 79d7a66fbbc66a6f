"""What the commands refuse."""


class UsageError(ValueError):
    """An option, a file or the environment is wrong; the message is one or two lines.

    The command prints it and ends with exit code 2, before anything is started.
    """


class StartError(RuntimeError):
    """The workers could not be started; the message says who did not come and why."""
