"""`ipu.distributed`: training on several instances."""

from tfdist.ipu.distributed import host_collective_ops, popdist_strategy

__all__ = ["host_collective_ops", "popdist_strategy"]


def __dir__() -> list[str]:
    return [*__all__]
