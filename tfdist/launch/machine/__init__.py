"""Resources of a machine: cores, GPUs, ports, MPI, and processes."""
