"""RunConfig: settings of a run, the rules between them, and this process's part in it."""

__all__: list[str] = []  # internal
