"""Functions in worker processes: `tfdist.launch`, and calls that are sent to other processes."""

__all__: list[str] = []  # internal
