"""Optimizers with gradients and slots in float32, whatever a weight's dtype is."""

__all__: list[str] = []  # internal
