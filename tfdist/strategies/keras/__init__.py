"""Keras: what `fit`, `evaluate` and `predict` need extended to train on several workers."""

__all__: list[str] = []  # internal
