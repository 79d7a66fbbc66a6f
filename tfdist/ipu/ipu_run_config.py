"""`ipu.ipu_run_config`: RunConfig, and the settings of the device."""

from __future__ import annotations

from typing import Any

from tfdist import estimator
from tfdist.ipu.config import IPUConfig
from tfdist.ipu.without_effect import log_without_effect
from tfdist.strategies.placement import count_replicas


class IPURunConfig(estimator.DeviceConfig):
    """`DeviceConfig` with the original's arguments.

    Args:
      iterations_per_loop: Steps in one session call.
      ipu_options: An `IPUConfig`, or what `utils.create_ipu_config` returned. They become the
        options of this process, as with `configure_ipu_system`.
      num_replicas: Copies of the model in this process, each on another device, or on as many as a
        pipeline has. None takes the number of `tfdist run`, or 1; if `tfdist run` gives another
        number, that number is used.
      num_shards: 1; the stages of a pipeline say how many devices it has.
      ordinal: Must be 0; a worker's devices are numbered from the first.
      prefetch_depth: Not needed: `tf.data` prefetches.
      compile_summary: Has no effect, which is logged.
      autosharding: False: nothing divides a model by itself.

    Raises:
      ValueError: If there are fewer devices than replicas, `num_shards` is not 1, or `autosharding`
        is True.
      TypeError: If `ipu_options` is something else.
    """

    def __init__(
        self,
        iterations_per_loop: int = 1,
        ipu_options: IPUConfig | None = None,
        num_replicas: int | None = None,
        num_shards: int = 1,
        ordinal: int = 0,
        prefetch_depth: int | None = None,
        compile_summary: bool = False,
        autosharding: bool = False,
    ) -> None:
        if autosharding:
            raise ValueError(
                "IPURunConfig got autosharding=True, and a model is not divided by itself. Leave "
                "it out, or return an IPUPipelineEstimatorSpec: its stages are on several devices."
            )
        log_without_effect("IPURunConfig", ["compile_summary"] if compile_summary else [])
        if ipu_options is not None and not isinstance(ipu_options, IPUConfig):
            raise TypeError(f"ipu_options must be an IPUConfig instance, got {ipu_options!r}.")
        if num_shards != 1 or ordinal != 0:
            raise ValueError(
                f"IPURunConfig got num_shards={num_shards} and ordinal={ordinal}: a pipeline's "
                "stages say how many devices a replica has, other models are on one, and the first "
                "replica begins with the first one. Set them to 1 and 0."
            )
        requested = 1 if num_replicas is None else num_replicas
        if requested > 1 and ipu_options is None:
            raise ValueError(
                f"IPURunConfig requires more than one device (num_replicas={requested}), but "
                "ipu_options is None. Make them with create_ipu_config and auto_select_ipus."
            )
        # popdist.tensorflow.set_ipu_config selects the launcher's number.
        allowed = (requested, count_replicas(None).number)
        if ipu_options is not None and ipu_options.auto_select_ipus not in allowed:
            raise ValueError(
                f"IPURunConfig configured with {requested} devices ({requested} num_replicas "
                f"times {num_shards} num_shards), but IpuOptions configured with "
                f"{ipu_options.auto_select_ipus} devices. Make them equal."
            )
        if ipu_options is not None:
            ipu_options.configure_ipu_system()
        super().__init__(
            iterations_per_loop=iterations_per_loop,
            variables_on_host=False,
            num_replicas=num_replicas,
        )


class RunConfig(estimator.RunConfig):
    """`tfdist.estimator.RunConfig` with the original's `ipu_run_config`."""

    def __init__(
        self, ipu_run_config: IPURunConfig | None = None, master: str | None = None, **kwargs: Any
    ) -> None:
        if master is not None:
            raise ValueError(
                f"master={master!r} is not supported: the strategy starts this worker's server. "
                "Leave it out."
            )
        super().__init__(device=ipu_run_config or IPURunConfig(), **kwargs)

    @property
    def ipu_run_config(self) -> estimator.DeviceConfig:
        """The `IPURunConfig`, under the original's name."""
        return self.device
