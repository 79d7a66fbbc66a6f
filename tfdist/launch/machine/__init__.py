"""Resources of a machine: cores, GPUs, ports, MPI, and processes."""

__all__: list[str] = []  # internal
