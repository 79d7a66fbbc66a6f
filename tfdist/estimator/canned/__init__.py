"""Canned estimators: complete models over feature columns."""

__all__: list[str] = []  # internal
