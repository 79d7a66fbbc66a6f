"""The end of a process and its progress: error lines, exit codes, progress file. No TensorFlow.

Everything here is internal.
"""

__all__: list[str] = []
