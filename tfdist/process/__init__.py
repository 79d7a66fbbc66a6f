"""The end of a process and its progress: error lines, exit codes, progress file. No TensorFlow."""

__all__: list[str] = []  # internal
