"""Checkpoints of a model_dir: found, checked, recovered, written, locked; warm starts."""

__all__: list[str] = []  # internal
