"""The command `tfdist kubernetes`, which writes the manifests of a run for kubectl."""

from tfdist.launch.kubernetes.command import main

__all__ = ["main"]


def __dir__() -> list[str]:
    return [*__all__]
