"""The Horovod strategy, its settings, and the end of an MPI rank."""
