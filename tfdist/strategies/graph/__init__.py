"""The dialect of graphs and sessions: a session reads the values of variables."""

__all__: list[str] = []  # internal
