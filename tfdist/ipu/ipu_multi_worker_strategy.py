"""`ipu.ipu_multi_worker_strategy`: training over gRPC."""

from __future__ import annotations

from typing import Any

from tfdist.ipu.strategy_contract import add_originals_methods, device_for
from tfdist.strategies import MultiWorkerStrategy


class IPUMultiWorkerStrategy(MultiWorkerStrategy):
    """`MultiWorkerStrategy` with the original's arguments: variables on the device by default."""

    def __init__(
        self,
        cluster_resolver: Any,
        ipu_device: str = "/device:IPU:0",
        variables_on_host: bool = False,
    ) -> None:
        super().__init__(cluster_resolver, device_for(ipu_device), variables_on_host)
        add_originals_methods(self)


IPUMultiWorkerStrategyV1 = IPUMultiWorkerStrategy
