"""The command `tfdist horovod install`, which builds Horovod against the installed TensorFlow."""

from tfdist.launch.horovod.command import main

__all__ = ["main"]


def __dir__() -> list[str]:
    return [*__all__]
