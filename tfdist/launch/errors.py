"""Errors that end a command before or during the start of the workers."""


class UsageError(ValueError):
    """An option, a file or the environment is wrong; the message is one or two lines.

    The command prints it and ends with exit code 2, before anything is started.
    """


class StartError(RuntimeError):
    """The workers could not be started; the message names those that are missing and the cause."""
