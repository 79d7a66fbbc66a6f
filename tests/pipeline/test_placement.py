"""The devices of a schedule's boxes, of weights and of slots; and that devices work at once."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.pipeline import (
    AutoStage,
    Block,
    Options,
    PipelinedExecution,
    ShardedExecution,
    Stage,
    begin_block,
    inference_model,
    training_model,
)
from tfdist.pipeline.compiled_calls import timeline_of

Quiet = Callable[..., Options]


def place_of(tensor_or_variable: Any) -> str:
    return str(tensor_or_variable.device).split("device:")[-1]


def noting(device_seen: dict[str, set[str]]) -> Callable[[tf.Tensor, str], tf.Tensor]:
    """Lets a block note on which device it runs: a queue's handle tells where it was made."""

    def note(x: tf.Tensor, block: str) -> tf.Tensor:
        def look(handle: tf.Tensor) -> None:
            found = re.search(r"CPU:\d", handle.numpy().decode())
            device_seen.setdefault(block, set()).add(found[0] if found else "")

        queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32])
        with tf.control_dependencies(
            [tf.py_function(look, [tf.strings.format("{}", [queue])], [])]
        ):
            return tf.identity(x)

    return note


def test_each_stage_runs_on_its_device_for_each_replica(quiet: Quiet) -> None:
    seen: dict[str, set[str]] = {}
    note = noting(seen)

    def model(x: tf.Tensor) -> tf.Tensor:
        for block in ("B1", "B2", "B3"):
            with Block(block):
                x = note(x + 1, block)
        return x

    stages = Stage("B1").device(1), Stage("B2").device(0), Stage("B3").device(2)
    options = quiet(PipelinedExecution(*stages), device_iterations=3, replication_factor=2)
    inference_model(model, options)(np.ones([6, 2], "float32"))
    assert seen == {"B1": {"CPU:2", "CPU:5"}, "B2": {"CPU:1", "CPU:4"}, "B3": {"CPU:3", "CPU:6"}}


def test_backward_runs_on_the_stages_device(quiet: Quiet) -> None:
    seen: dict[str, set[str]] = {}
    note = noting(seen)
    weights = [tf.Variable(1.0) for _ in range(2)]

    @tf.custom_gradient
    def first(x: tf.Tensor) -> Any:
        return x, lambda gradient: note(gradient, "B1")

    @tf.custom_gradient
    def second(x: tf.Tensor) -> Any:
        return x, lambda gradient: note(gradient, "B2")

    def model(x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = first(x * weights[0])
        with Block("B2"):
            return tf.reduce_mean(second(x * weights[1]))

    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3)
    training_model(model, options)(np.ones([6], "float32"))
    assert seen == {"B1": {"CPU:1"}, "B2": {"CPU:2"}}


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: tf_keras.optimizers.Adam(), "device"),
        (lambda: tf_keras.optimizers.legacy.Adam(), "host"),
        (lambda: keras.optimizers.Adam(), "device"),
        (lambda: keras.optimizers.Adam(), "host"),
        (lambda: v1.train.AdamOptimizer(), "device"),
    ],
    ids=["tf_keras", "legacy, host", "Keras 3", "Keras 3, host", "v1"],
)
def test_slots_are_beside_their_weights_or_both_on_the_host(
    layered: Any, quiet: Quiet, samples: Any, make: Callable[[], Any], state: str
) -> None:
    model, optimizer = layered(2), make()
    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3, optimizer_state=state)
    training_model(model, options, optimizer)(*samples(6))
    expected = ["CPU:0", "CPU:0"] if state == "host" else ["CPU:1", "CPU:2"]
    assert [place_of(weight) for weight in model.weights] == expected
    variables = optimizer.variables
    variables = variables() if callable(variables) else variables
    slots = [v for v in variables if v.shape == (6, 6)]
    assert len(slots) == 4
    if isinstance(optimizer, keras.Optimizer):
        slots = [slot.value for slot in slots]
    assert {place_of(slot) for slot in slots} == set(expected)


def test_weights_that_the_user_has_made_stay_where_they_are(
    layered: Any, quiet: Quiet, samples: Any
) -> None:
    model = layered(2)
    inputs, labels = samples(6)
    with tf.device("CPU:3"):
        model(tf.constant(inputs))
    options = quiet(PipelinedExecution("B1", "B2"), gradient_accumulation=3)
    training_model(model, options)(inputs, labels)
    assert [place_of(weight) for weight in model.weights] == ["CPU:3", "CPU:3"]


@pytest.mark.parametrize("kind", ["keras", "tf_keras"])
def test_layers_that_a_block_begins_at_make_their_weights_on_its_device(
    quiet: Quiet, kind: str
) -> None:
    layers = (keras if kind == "keras" else tf_keras).layers
    stack = [layers.Dense(4), layers.Dense(4), layers.Dense(1)]
    model = (keras if kind == "keras" else tf_keras).Sequential(stack)
    begin_block(stack[0], "B1")
    begin_block(stack[1], "B2")
    options = quiet(PipelinedExecution("B1", "B2"), device_iterations=2)
    found = inference_model(model, options)(np.ones([4, 3], "float32"))
    assert found.shape == (4, 1)
    assert [place_of(getattr(w, "value", w) if kind == "keras" else w) for w in model.weights] == [
        *["CPU:1"] * 2,
        *["CPU:2"] * 4,
    ]


@pytest.mark.parametrize(
    ("stages", "device_of", "expected"),
    [
        (AutoStage.SAME_AS_DEVICE, (1, 0, 0), ["CPU:2", "CPU:1", "CPU:1"]),
        (AutoStage.AUTO_INCREMENT, (1, 0, 0), ["CPU:2", "CPU:1", "CPU:1"]),
        (AutoStage.AUTO_INCREMENT, (), ["CPU:1", "CPU:2", "CPU:3"]),
    ],
)
def test_automatic_stages_follow_the_blocks_devices_or_take_one_for_each_block(
    layered: Any,
    quiet: Quiet,
    samples: Any,
    stages: AutoStage,
    device_of: tuple[int, ...],
    expected: list[str],
) -> None:
    model = layered(3, device_of=device_of)
    options = quiet(PipelinedExecution(stages), gradient_accumulation=5)
    training_model(model, options)(*samples(5))
    assert [place_of(weight) for weight in model.weights] == expected


def overlap_s(boxes: Any) -> float:
    """The time in which boxes of two stages are under way at once."""
    first, second = ([b for b in boxes if b.box.stage == stage] for stage in (0, 1))
    return sum(
        max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s)) for a in first for b in second
    )


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_stages_work_at_once_unless_the_execution_is_sharded(
    layered: Any, quiet: Quiet, samples: Any, tmp_path: Any, is_pipelined: bool
) -> None:
    strategy = PipelinedExecution if is_pipelined else ShardedExecution
    options = quiet(
        strategy("B1", "B2"), gradient_accumulation=8, enable_profiling=tmp_path / "profile"
    )
    train = training_model(layered(2, width=96), options)
    inputs, labels = samples(8 * 256)
    labels = np.resize(labels, [len(labels), 96])
    train(inputs, labels)
    (program,) = train._calls._programs.values()
    total = 0.0
    for _ in range(10):
        _, times = program([tf.constant(inputs), tf.constant(labels)])
        boxes = timeline_of(program, times[-1], "").boxes
        total += overlap_s(boxes)
        in_order = sorted(boxes, key=lambda one: one.start_s)
        if not is_pipelined:
            assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(in_order))
    assert (total > 0) == is_pipelined
