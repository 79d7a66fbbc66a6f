"""Training: the loop, other workers, stop signals, checkpoints, and progress reports."""

__all__: list[str] = []  # internal
