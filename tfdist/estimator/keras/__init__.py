"""Keras models as Estimators, and the choice of the Keras version."""

__all__: list[str] = []  # internal
