"""The order of a large gradient: ops before it, and ops after it."""

import graphlib
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator import EstimatorSpec
from tfdist.estimator.graph.accumulation import Accumulation, StepSums
from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.grpc.collectives import GrpcCollectives
from tfdist.strategies.grpc.direct_exchange import Collective, DirectExchange
from tfdist.strategies.placement import Placement
from tfdist.strategies.reductions import early_reduction

IMAGES = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)


def convolution(x: tf.Tensor, name: str, filters: int = 3) -> tf.Tensor:
    """Without a name scope of its own, as a model_fn may have it."""
    shape = [3, 3, x.shape[-1], filters]
    return tf.nn.conv2d(x, v1.get_variable(name, shape, use_resource=True), 1, "SAME")


def chain(x: tf.Tensor) -> tf.Tensor:
    for number in range(3):
        x = tf.nn.relu(convolution(x, f"kernel_{number}"))
    return x


def branches(x: tf.Tensor) -> tf.Tensor:
    x = convolution(x, "first")
    return x + convolution(convolution(x, "left"), "right") + convolution(x, "shortcut")


def one_weight_twice(x: tf.Tensor) -> tf.Tensor:
    weight = v1.get_variable("weight", [3, 3], use_resource=True)
    return tf.linalg.matmul(tf.linalg.matmul(x, weight), weight, transpose_b=True)


def penalty_of_its_gradient(x: tf.Tensor) -> tf.Tensor:
    y = convolution(convolution(x, "first"), "second")
    (gradient,) = tf.gradients(tf.reduce_sum(tf.square(y)), [x])
    return y + convolution(gradient, "third")


MODELS = [chain, branches, one_weight_twice, penalty_of_its_gradient]
Model = Callable[[tf.Tensor], tf.Tensor]


def gradients_by_optimizer(model: Model, x: tf.Tensor) -> list[tf.Tensor]:
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    return [g for g, _ in optimizer.compute_gradients(tf.reduce_sum(tf.square(model(x))))]


def gradients_by_tape(model: Model, x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x)))
    return tape.gradient(loss, v1.trainable_variables())


def clipped_gradients(model: Model, x: tf.Tensor) -> list[tf.Tensor]:
    return tf.clip_by_global_norm(gradients_by_optimizer(model, x), 1.0)[0]


def has_cycle(graph: tf.Graph) -> bool:
    """Says so of cycles, too, that TensorFlow's simplifications would remove."""
    sorter = graphlib.TopologicalSorter(
        {
            op: [*(value.op for value in op.inputs), *op.control_inputs]
            for op in graph.get_operations()
        }
    )
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return True
    return False


def run(start: tf.Operation, fetches: list[tf.Tensor]) -> list[np.ndarray]:
    """A session does not see edges that are made after its first run."""
    with v1.Session() as session:
        session.run(start)
        return session.run(fetches)


@pytest.mark.parametrize("find", [gradients_by_optimizer, gradients_by_tape, clipped_gradients])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_stay_as_they_are(
    model: Model, find: Callable[[Model, tf.Tensor], list[tf.Tensor]]
) -> None:
    if model is penalty_of_its_gradient and find is gradients_by_tape:
        find = gradients_by_optimizer  # tf.gradients is nothing for a tape.
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        gradients = find(model, tf.constant(IMAGES))
        start = v1.global_variables_initializer()
        before = run(start, gradients)
        leaving = [early_reduction.without_gates(gradient)[0] for gradient in gradients]
        early_reduction.make_first(leaving)
        assert not has_cycle(graph)
        after = run(start, leaving)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("find", [gradients_by_optimizer, gradients_by_tape])
def test_the_gradient_of_a_layers_input_waits_for_that_of_its_weights(
    find: Callable[[Model, tf.Tensor], list[tf.Tensor]],
) -> None:
    with tf.Graph().as_default() as graph:
        leaving = [early_reduction.without_gates(g)[0] for g in find(chain, tf.constant(IMAGES))]
        early_reduction.make_first(leaving)
        of_inputs = [op for op in graph.get_operations() if op.type == "Conv2DBackpropInput"]
        # The pass goes from the last layer to the first one.
        for of_input, of_weights in zip(of_inputs, reversed(leaving), strict=True):
            assert of_input.control_inputs == [of_weights.op]


def test_in_a_function_of_tensorflow_2_the_gradient_of_a_layers_input_waits_as_well() -> None:
    kernels = [tf.Variable(tf.random.stateless_normal([64, 64], [1, i])) for i in range(3)]

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            for kernel in kernels:
                x = tf.matmul(x, kernel)
            loss = tf.reduce_sum(x)
        gradients: list[tf.Tensor] = tape.gradient(loss, kernels)
        early_reduction.make_first(gradients)
        return gradients

    function = tf.function(step).get_concrete_function(tf.ones([8, 64]))
    *of_later_layers, _ = reversed(function.outputs)
    waits = [op for op in function.graph.get_operations() if op.type == "MatMul"]
    waits = [op for op in waits if op.control_inputs]
    assert len(waits) == len(of_later_layers)
    one, other = step(tf.ones([8, 64])), function(tf.ones([8, 64]))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_of_two_gradients_of_one_layer_one_waits_for_the_other() -> None:
    with tf.Graph().as_default() as graph:
        weights = [v1.get_variable(f"w{i}", [30, 30], use_resource=True) for i in range(2)]
        found = tf.gradients(tf.reduce_sum(tf.square(tf.matmul(*weights))), weights)
        leaving = [early_reduction.without_gates(gradient)[0] for gradient in found]
        early_reduction.make_first(leaving)
        assert not has_cycle(graph)
        assert [len(gradient.op.control_inputs) for gradient in leaving] == [0, 1]


def test_a_gradient_before_its_gate_has_the_shape_that_is_known_behind_it() -> None:
    with tf.Graph().as_default():
        unknown = v1.placeholder(tf.float32)
        gated, _ = tf.tuple([tf.square(unknown), unknown])
        gated.set_shape([3, 2])
        ungated, _ = early_reduction.without_gates(gated)
        assert ungated.op.type == "Square"
        assert ungated.shape == [3, 2]


def test_an_old_variable_is_read_where_it_was_read() -> None:
    with tf.Graph().as_default():
        read = tf.identity(v1.get_variable("old", [3], use_resource=False))
        assert early_reduction.without_gates(read)[0].dtype == tf.float32


def test_what_waits_for_something_else_is_no_gate() -> None:
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        with tf.control_dependencies([v1.Print(value, [value])]):
            waiting = tf.identity(value)
        assert early_reduction.without_gates(waiting) == (waiting, [])


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize(
    ("device", "waits"), [("/device:CPU:1", True), ("/device:GPU:0", False), ("", False)]
)
def test_the_backward_pass_waits_until_a_gradient_has_been_offered_where_that_takes_no_copy(
    device: str, waits: bool, num_workers: int
) -> None:
    with tf.Graph().as_default() as graph:
        with tf.device(device):
            x = tf.random.normal([50, 200])
            for number in range(2):
                x = tf.matmul(x, v1.get_variable(f"w{number}", [200, 200], use_resource=True))
            gradients = tf.gradients(x, v1.trainable_variables())
        gradient = gradients[1]
        early_reduction.make_first([gradient])
        hosts = tuple(f"/job:worker/task:{index}/device:CPU:0" for index in range(num_workers))
        result = tf.identity(tf.identity(gradient))
        DirectExchange(hosts=hosts, index=0).redirect(
            [[Collective(kind="sum", tensor=gradient, result=result, key="0")]]
        )
        operations = graph.get_operations()
        (of_input,) = (op for op in operations if gradient.op in op.control_inputs)
        offers = [op for op in of_input.control_inputs if op.type == "QueueEnqueueV2"]
        assert len(offers) == (num_workers - 1 if waits else 0)
        # What is offered later is made of the others' values.
        assert len([op for op in operations if op.type == "QueueEnqueueV2"]) == (
            num_workers - 1 if num_workers == 2 else 2 * (num_workers - 1)
        )


def test_a_strategy_sends_a_large_gradient_before_its_gate_and_gates_what_comes_back() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.random.normal([50, 400])
        for number in range(2):  # Each gradient is 0.64 MB.
            x = tf.matmul(x, v1.get_variable(f"w{number}", [400, 400], use_resource=True))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.square(x)))
        extended = WorkerExtended(
            tf.distribute.get_strategy(),
            Placement(device="/device:CPU:1"),
            GrpcCollectives(num_workers=2, worker_index=0),
        )
        reduced = extended._batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)
        sums = [op for op in graph.get_operations() if op.type == "CollectiveReduce"]
        # The last layer's gradient leaves first.
        for (gated, _), result, total in zip(pairs, reduced, reversed(sums), strict=True):
            maker = gated.op.inputs[0].op
            assert total.inputs[0].op.inputs[0].op is maker
            assert result.op.control_inputs == gated.op.control_inputs != []
            (of_input,) = (op for op in maker.inputs[1].consumers() if op is not maker)
            assert maker in of_input.control_inputs


def test_a_sum_over_micro_batches_leaves_before_the_gate_and_the_pass_waits_for_no_offer() -> None:
    """The backward pass of the earlier micro-batches runs without the offers."""
    with tf.Graph().as_default(), tf.device("/device:CPU:1"):
        x = start = tf.random.normal([50, 200])
        for number in range(2):
            x = tf.matmul(x, v1.get_variable(f"w{number}", [200, 200], use_resource=True))
        loss = tf.reduce_sum(tf.square(x))
        gradients = [g for g, _ in v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)]
        spec = EstimatorSpec("train", loss=loss, host_call=(tf.group, gradients))
        sums = StepSums(spec, (start, None), Accumulation(count=2), replica=0)
        gated, on_host = gradients[1], tf.identity(sums.last().tensors[1])
        maker = gated.op.inputs[0].op
        total, gates = early_reduction.without_gates(on_host)
        own, before = total.op.inputs[0].op.inputs  # of (own + before) * factor
        assert own.op is maker
        assert before.op.type == "ReadVariableOp"
        assert {*gated.op.control_inputs} < {*gates[0].control_inputs}
        early_reduction.make_first([total])
        result = tf.identity(tf.identity(total))
        DirectExchange(hosts=("/job:worker/task:0/device:CPU:0",) * 2, index=0).redirect(
            [[Collective(kind="sum", tensor=total, result=result, key="0")]]
        )
        (of_input,) = (op for op in maker.inputs[1].consumers() if op is not maker)
        assert of_input.control_inputs == [maker]


def test_functions_in_a_v1_graph_are_left_alone() -> None:
    @tf.function
    def step(x: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch([x, weight])
            loss = tf.reduce_sum(tf.matmul(x, weight))
        found = tape.gradient(loss, [x, weight])
        early_reduction.make_first([found[1]])
        assert not any(op.control_inputs for op in found[1].graph.get_operations())
        return found[1]

    with tf.Graph().as_default(), v1.Session() as session:
        gradient = session.run(step(tf.ones([2, 3]), tf.ones([3, 4])))
    np.testing.assert_array_equal(gradient, np.full([3, 4], 2.0))
