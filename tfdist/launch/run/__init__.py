"""The command `tfdist run`: description, start, supervision and end of the workers."""

__all__: list[str] = []  # internal
