"""`ipu.distributed`: training on several instances."""

from tfdist.ipu.distributed import popdist_strategy

__all__ = ["popdist_strategy"]


def __dir__() -> list[str]:
    return [*__all__]
