"""`ipu.horovod.popdist_strategy`: the older module of `ipu.distributed.popdist_strategy`."""

from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy

__all__ = ["PopDistStrategy"]
