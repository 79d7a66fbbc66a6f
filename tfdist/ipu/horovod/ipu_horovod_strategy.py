"""`ipu.horovod.ipu_horovod_strategy`: training over Horovod and MPI."""

from __future__ import annotations

from tfdist.ipu.strategy_contract import add_originals_methods, device_for
from tfdist.strategies import HorovodStrategy


class IPUHorovodStrategy(HorovodStrategy):
    """`HorovodStrategy` with the original's arguments: variables on the device by default."""

    def __init__(self, ipu_device: str = "/device:IPU:0", variables_on_host: bool = False) -> None:
        super().__init__(device_for(ipu_device), variables_on_host)
        add_originals_methods(self)
