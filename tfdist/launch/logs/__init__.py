"""The commands `tfdist logs` and `tfdist status`: runs of the past and of the present."""

from tfdist.launch.logs.command import main

__all__ = ["main"]


def __dir__() -> list[str]:
    return [*__all__]
