"""The graph and session of a step: replicas, model_fn, host_call, and the global step."""

__all__: list[str] = []  # internal
