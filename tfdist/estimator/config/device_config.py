"""DeviceConfig: settings of the device of one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfdist.cluster.arguments import check_flag
from tfdist.cluster.tasks import checked_count
from tfdist.estimator.config import run_config_rules as rules
from tfdist.strategies.placement import count_replicas
from tfdist.training.precision import find_precision


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Settings of the device of one worker.

    Attributes:
      device: The device that computes model_fn while training without a strategy, for example
        "/device:GPU:0". None is the first GPU, or a second logical CPU. A strategy has its own
        device.
      variables_on_host: Whether variables live on the host while training without a strategy.
      iterations_per_loop: Steps in one session call. The reported loss is the mean over them.
        `steps` must be a multiple of it, and `max_steps` is rounded up. Hooks run once a call.
        Summaries made inside model_fn are not written if it is above 1.
      num_replicas: Copies of the model in this process without a strategy. Each has its own device,
        or as many as a pipeline needs (`device` and the ones after it), and reads separate batches.
        They share the variables; gradients are averaged on the host. A strategy has its own number.
        None takes the number of `tfdist run`, else 1. A number given to `tfdist run` takes
        precedence.
      gradient_accumulation: Micro-batches that each replica takes in a step, for a model with
        `host_call`. The input gives micro-batches. Their gradients are added on the device, in
        float32; only the last micro-batch's session call runs hooks and `host_call`, and reduces.
        Steps count weight updates, and the reported loss is the mean over the micro-batches.
      accumulation_reduction: Whether `host_call` gets the "mean" or the "sum" of the gradients.
      precision: "float32"; "mixed_float16" or "mixed_bfloat16", which compute in half precision
        with weights in float32; "float16" or "bfloat16", with weights in half precision as well.
        "32.32", "16.32" and "16.16" are float32, mixed_float16 and float16. It holds for layers of
        tf_keras that have no dtype of their own and for weights of `get_variable` (and of
        `tf.compat.v1.layers`, if their inputs are in half precision), in training, evaluation,
        prediction and export alike. float32 leaves the policy of tf_keras as the program sets it.
      stochastic_rounding: With weights in half precision, whether optimizers of `tfdist.training`
        round new weights up or down by chance; False rounds to the nearest value. None is this
        process's setting, which is True unless `tfdist.ipu` has changed it.
    """

    device: str | None = None
    variables_on_host: bool = True
    iterations_per_loop: int = 1
    num_replicas: int | None = None
    gradient_accumulation: int = 1
    accumulation_reduction: Literal["mean", "sum"] = "mean"
    precision: str = "float32"
    stochastic_rounding: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_replicas", count_replicas(self.num_replicas).number)
        for name, of_one in (
            ("iterations_per_loop", "a session call"),
            ("gradient_accumulation", "a micro-batch"),
        ):
            checked_count(name, getattr(self, name), more=f" 1 is {of_one} for each step.")
        if self.accumulation_reduction not in ("mean", "sum"):
            found = self.accumulation_reduction
            raise ValueError(f'accumulation_reduction must be "mean" or "sum", got {found!r}.')
        check_flag("variables_on_host", self.variables_on_host)
        if self.device is not None and not isinstance(self.device, str):
            raise ValueError(
                f"device must be a name such as '/device:GPU:0', or None, got {self.device!r}."
            )
        precision = find_precision(self.precision)
        object.__setattr__(self, "precision", precision.name)
        rules.check_stochastic_rounding(self.stochastic_rounding, precision)
