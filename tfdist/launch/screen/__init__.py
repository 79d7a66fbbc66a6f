"""Terminal output of a run: progress line, workers' output, and failure box."""

__all__: list[str] = []  # internal
