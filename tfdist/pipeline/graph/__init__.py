"""The graph of a pipelined step: tracing, cutting into stages, gradients, execution."""

__all__: list[str] = []  # internal
