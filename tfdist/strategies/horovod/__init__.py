"""The Horovod strategy, its settings, and the end of an MPI rank."""

__all__: list[str] = []  # internal
