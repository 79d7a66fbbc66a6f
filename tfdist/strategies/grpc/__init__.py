"""The engine gRPC: TensorFlow's servers, their collectives, and the strategy that uses them."""

__all__: list[str] = []  # internal
