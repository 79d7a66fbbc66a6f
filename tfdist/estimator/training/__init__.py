"""Training: the loop, other workers, stop signals, checkpoints, and progress reports."""
