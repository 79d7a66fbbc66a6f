"""Terminal output of a run: progress line, workers' output, and failure box."""
