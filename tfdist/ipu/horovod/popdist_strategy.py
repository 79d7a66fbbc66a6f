"""`ipu.horovod.popdist_strategy`: the older place of `ipu.distributed.popdist_strategy`."""

from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy

__all__ = ["PopDistStrategy"]
