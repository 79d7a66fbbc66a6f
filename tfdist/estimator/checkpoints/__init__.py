"""Checkpoints of a model_dir: search, checks, recovery, writing and locks; warm starts."""

__all__: list[str] = []  # internal
