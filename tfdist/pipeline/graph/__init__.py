"""The graph of a pipelined step: traced, cut into stages, differentiated, executed."""

__all__: list[str] = []  # internal
