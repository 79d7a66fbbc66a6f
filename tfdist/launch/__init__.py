"""The command `tfdist`: run, slurm, kubernetes and doctor. No TensorFlow."""

__all__: list[str] = []  # internal
