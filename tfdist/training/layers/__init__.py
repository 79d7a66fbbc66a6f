"""Parts of a model's graph: batch normalization over replicas, and recomputation."""

__all__: list[str] = []  # internal
