"""The dialect of graphs and sessions: variables whose values are read by a session."""

__all__: list[str] = []  # internal
