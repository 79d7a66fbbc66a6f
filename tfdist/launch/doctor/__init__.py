"""`tfdist doctor`: checks of the installation and of this machine, each with a fix."""

from tfdist.launch.doctor.command import main

__all__ = ["main"]


def __dir__() -> list[str]:
    return [*__all__]
