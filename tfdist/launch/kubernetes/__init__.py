"""The command `tfdist kubernetes`, which writes the manifests of a run for kubectl."""

from tfdist.launch.kubernetes.command import main
from tfdist.launch.kubernetes.job_parser import add_arguments

__all__ = ["add_arguments", "main"]
