"""Optimizers that wrap an optimizer: they change the reduced gradient, or when it is applied."""

__all__: list[str] = []  # internal
