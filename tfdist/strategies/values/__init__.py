"""Values that workers share besides gradients: combined variables, a barrier, gathered texts."""

__all__: list[str] = []  # internal
