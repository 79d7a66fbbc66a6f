"""`tfdist kubernetes`: manifests of a run, for kubectl."""

from tfdist.launch.kubernetes.arguments import add_arguments
from tfdist.launch.kubernetes.command import main

__all__ = ["add_arguments", "main"]
