"""The workers of a run in the launcher: plan, state, and the channel to their agents."""

__all__: list[str] = []  # internal
