"""Optimizers whose gradients and slots are float32 whatever a weight's dtype is."""

__all__: list[str] = []  # internal
