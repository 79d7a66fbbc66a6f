"""The plan of a training: sizes, devices, parameters, and estimates of memory and time.

Everything here follows from the settings and the run that this process is part of. TensorFlow is
not imported.
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from arguments import Settings, num_stages
from layout import Layout, find_layout
from options import UsageError

from tfdist.cluster.instances import find_instance, find_launched_replicas

BYTES = 4  # of a float32
GB = 1e9
PROCESS_BYTES = 0.6e9  # Python with TensorFlow, before a model.
CALL_S = 2e-3  # Measured: building a graph takes so long for each call of a stage in it.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes of a training."""

    settings: Settings
    # Micro-batches, replicas and workers of a step, and this worker's place among them.
    layout: Layout
    workers_of_machine: int  # The workers that share this machine.
    is_overridden: bool  # Whether the launcher's number of replicas replaces `replication_factor`.

    @property
    def samples_per_step(self) -> int:
        """Sequences in a step of the log."""
        return self.layout.global_batch * self.settings.device_iterations

    @property
    def num_stages(self) -> int:
        return num_stages(self.settings)

    @property
    def layers_per_device(self) -> tuple[int, ...]:
        return self.settings.layers_per_device or (self.settings.num_hidden_layers,)


def make_plan(settings: Settings) -> Plan:
    """Returns the plan for this process.

    Raises:
      ClusterError: If the variables that describe the run are malformed.
      UsageError: If the launcher gives each replica another number of devices.
    """
    instance, launched = find_instance(), find_launched_replicas()
    requested = settings.replication_factor
    layout = find_layout(
        instance,
        micro_batch=settings.micro_batch_size,
        accumulation=settings.gradient_accumulation,
        requested=requested,
    )
    plan = Plan(
        settings=settings,
        layout=layout,
        workers_of_machine=instance.num_local_instances,
        is_overridden=requested not in (layout.replicas, instance.num_total_replicas),
    )
    needed = len(plan.layers_per_device)
    if launched is not None and launched.devices_per_replica not in (1, needed):
        raise UsageError(
            f"the launcher gives a replica {launched.devices_per_replica} devices, and "
            f"--layers-per-device has {needed} numbers. Start with --devices-per-replica {needed}."
        )
    return plan


def device_allocation(plan: Plan) -> list[tuple[str, int]]:
    """Returns the parts of the model, in order, each with the index of its device."""
    parts = [("Embedding", 0)]
    layer = 0
    for device, number in enumerate(plan.layers_per_device):
        for _ in range(number):
            parts.append((f"Encoder {layer:<2}", device))
            layer += 1
    return [*parts, ("Pooler", 0), ("Classifier", 0)]


def weight_shapes(settings: Settings) -> dict[str, list[int]]:
    """Returns the shape of each weight by its name; the decoder is the embedding."""
    hidden, inner = settings.hidden_size, settings.inner_size
    shapes: dict[str, list[int]] = {}

    def add_norm(scope: str) -> None:
        shapes.update({f"{scope}/LayerNorm/beta": [hidden], f"{scope}/LayerNorm/gamma": [hidden]})

    def add_dense(scope: str, width: int, units: int) -> None:
        shapes.update({f"{scope}/kernel": [width, units], f"{scope}/bias": [units]})

    embeddings = "bert/embeddings"
    shapes[f"{embeddings}/word_embeddings"] = [settings.vocab_size, hidden]
    shapes[f"{embeddings}/token_type_embeddings"] = [2, hidden]
    shapes[f"{embeddings}/position_embeddings"] = [settings.max_position_embeddings, hidden]
    add_norm(embeddings)
    for index in range(settings.num_hidden_layers):
        layer = f"bert/encoder/layer_{index}"
        for name in ("query", "key", "value"):
            add_dense(f"{layer}/attention/self/{name}", hidden, hidden)
        add_dense(f"{layer}/attention/output/dense", hidden, hidden)
        add_norm(f"{layer}/attention/output")
        add_dense(f"{layer}/intermediate/dense", hidden, inner)
        add_dense(f"{layer}/output/dense", inner, hidden)
        add_norm(f"{layer}/output")
    add_dense("bert/pooler/dense", hidden, hidden)
    add_dense("cls/predictions/transform/dense", hidden, hidden)
    add_norm("cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = [settings.vocab_size]
    shapes["cls/seq_relationship/output_weights"] = [2, hidden]
    shapes["cls/seq_relationship/output_bias"] = [2]
    return shapes


def num_parameters(settings: Settings) -> int:
    return sum(math.prod(shape) for shape in weight_shapes(settings).values())


def memory_bytes(plan: Plan) -> float:
    """Estimates the memory of the workers that share this machine.

    Weights, optimizer slots and reduced gradients are on the host of each worker. A replica has
    gradients, their sums over micro-batches, and the activations of the micro-batches in flight.
    """
    settings = plan.settings
    weights = BYTES * num_parameters(settings)
    has_sums = settings.gradient_accumulation > 1
    host = PROCESS_BYTES + weights * (1 + 2 + 1)  # Weights, two slots, reduced gradients.
    replica = weights * (1 + has_sums + 1)  # Gradients, sums, copies of the weights.
    return plan.workers_of_machine * (
        host + plan.layout.replicas * (replica + activation_bytes(plan))
    )


def activation_bytes(plan: Plan) -> float:
    """Estimates the activations of a replica between forward and backward pass."""
    settings = plan.settings
    words = settings.micro_batch_size * settings.sequence_length
    width = BYTES * words * settings.hidden_size  # Of a tensor [batch, sequence, hidden].
    scores = BYTES * words * settings.sequence_length * settings.num_attention_heads
    layer = 12 * width + 3 * BYTES * words * settings.inner_size + 3 * scores
    predictions = BYTES * settings.micro_batch_size * settings.mask_tokens * settings.vocab_size
    total = 3.0 * predictions + layer  # Logits, and the layer whose gradient is computed.
    kept = width if settings.recompute_checkpoint_every_layer else layer
    for stage, number in enumerate(plan.layers_per_device):
        total += number * kept * micro_batches_in_flight(plan, stage)
    return total


def micro_batches_in_flight(plan: Plan, stage: int) -> int:
    """Returns the micro-batches whose activations a stage keeps at most."""
    if plan.num_stages == 1 or plan.settings.pipeline_schedule == "sequential":
        return 1
    return max(1, 2 * (plan.num_stages - stage) - 1)  # Of the grouped schedule.


def flops_of_sequence(settings: Settings) -> float:
    """Returns the floating-point operations of a sequence, forward and backward.

    A multiplication with its addition counts two; the backward pass takes twice the forward pass
    (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, table 1).
    """
    hidden, words = settings.hidden_size, settings.sequence_length
    layer = words * (4 * hidden * hidden + 2 * hidden * settings.inner_size)
    attention = 2 * words * words * hidden
    heads = settings.mask_tokens * hidden * (hidden + settings.vocab_size) + hidden * hidden
    return 6.0 * (settings.num_hidden_layers * (layer + attention) + heads)


def measured_flops_per_s() -> float:
    """Measures products of matrices with all cores, for about 0.05 seconds; the fastest counts."""
    size = 1024
    matrix = np.ones((size, size), np.float32)
    times_s: list[float] = []
    while sum(times_s) < 0.05:
        start = time.perf_counter()
        matrix @ matrix
        times_s.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times_s)


def memory_of_machine() -> float:
    """Returns the memory that this process may use, in bytes: the machine's, or its container's."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return total if text == "max" else min(total, float(text))


def check_memory(plan: Plan) -> None:
    """Refuses a training that this machine cannot hold.

    Raises:
      UsageError: With both numbers.
    """
    needed, has = memory_bytes(plan), memory_of_machine()
    if needed > has:
        raise UsageError(
            f"this training needs about {needed / GB:.1f} GB{_of_workers(plan)}, and this machine "
            f"has {has / GB:.1f} GB.\nTake a smaller --micro-batch-size or fewer replicas, or "
            "start it on more machines; --dry-run shows the plan."
        )


def calls_in_graph(plan: Plan) -> int:
    """Returns the calls of stages in the graph: a pipeline's has all micro-batches of a step."""
    if plan.num_stages == 1:
        return 0
    micro_batches = plan.layout.replicas * plan.settings.gradient_accumulation
    return 2 * plan.num_stages * micro_batches  # Forward and backward.


def describe_graph(plan: Plan) -> str:
    calls = calls_in_graph(plan)
    return f"graph: {calls:,} calls of stages, about {_duration(CALL_S * calls)} to build"


def describe(plan: Plan) -> str:
    """Returns the plan as text, for --dry-run."""
    settings = plan.settings
    flops = flops_of_sequence(settings) * plan.samples_per_step
    step_s = flops / (0.5 * measured_flops_per_s())  # Half of what a large product reaches.
    needed, has = memory_bytes(plan), memory_of_machine()
    fits = "" if needed <= has else ": this is too little"
    stages = f", {settings.pipeline_schedule} schedule" if plan.num_stages > 1 else ""
    lines = [
        f"config: {settings.config}",
        f"model: {settings.num_hidden_layers} layers of {settings.hidden_size}, "
        f"{settings.num_attention_heads} heads, vocabulary of {settings.vocab_size}",
        f"parameters: {num_parameters(settings):,}",
        f"data: {settings.dataset}, {settings.sequence_length} words, "
        f"{settings.mask_tokens} of them masked at most",
        f"global_batch_size: {plan.layout.global_batch} = {plan.layout.describe()}",
        f"training_steps: {settings.training_steps}, device_iterations: "
        f"{settings.device_iterations}",
        f"optimizer: {settings.optimizer}, learning rate {settings.learning_rate:g}, "
        f"{settings.lr_schedule}, warm-up {settings.lr_warmup:g}",
        f"stages: {plan.num_stages} on {len(plan.layers_per_device)} device(s) of each replica"
        + stages,
        *(f"  {part:<10} --> Device {device}" for part, device in device_allocation(plan)),
        *([describe_graph(plan)] if calls_in_graph(plan) else []),
        f"memory: about {needed / GB:.1f} GB{_of_workers(plan)}; this machine has "
        f"{has / GB:.1f} GB{fits}",
        f"time of a step: about {_duration(step_s)} on this machine's "
        f"{len(os.sched_getaffinity(0))} core(s), longer for small models "
        f"({flops / 1e9:,.0f} GFLOP)",
    ]
    return "\n".join(lines)


def _of_workers(plan: Plan) -> str:
    number = plan.workers_of_machine
    return f" for its {number} workers" if number > 1 else ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
