"""The command `tfdist`: run, slurm, kubernetes and doctor. No TensorFlow."""
