"""The device that computes, and the one that holds the variables."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import DeviceError, Placement
from tfdist.strategies.placement import HOST, place


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes TensorFlow report so many GPUs."""

    def gpus(count: int) -> None:
        found = [object()] * count
        monkeypatch.setattr(
            tf.config, "list_physical_devices", lambda kind=None: found if kind == "GPU" else []
        )

    gpus(0)
    return gpus


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


# place().


def test_without_a_gpu_the_second_logical_cpu_is_the_device(gpus: Any) -> None:
    placement = place(None)
    assert placement == Placement(device="/device:CPU:1", variables_on_host=True)


def test_the_first_gpu_is_the_device(gpus: Any) -> None:
    gpus(2)
    assert place(None).device == "/device:GPU:0"


@pytest.mark.parametrize("name", ["/device:GPU:1", "GPU:1", "/gpu:1", "gpu:1", "/GPU:1"])
def test_a_gpu_can_be_named_in_tensorflows_ways(gpus: Any, name: str) -> None:
    gpus(2)
    assert place(name).device == "/device:GPU:1"


@pytest.mark.parametrize(
    ("name", "device"),
    [("/device:CPU:0", HOST), ("CPU:1", "/device:CPU:1"), ("/cpu:3", "/device:CPU:3")],
)
def test_any_logical_cpu_exists(gpus: Any, name: str, device: str) -> None:
    assert place(name).device == device


@pytest.mark.parametrize(
    ("count", "name", "found"),
    [
        (0, "/device:GPU:0", "no GPU"),
        (1, "/device:GPU:1", "/device:GPU:0"),
        (2, "GPU:2", "/device:GPU:0, /device:GPU:1"),
        (0, "/device:TPU:0", "no GPU"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(
    gpus: Any, count: int, name: str, found: str
) -> None:
    gpus(count)
    message = f"device '{name}' does not exist: this machine has {found}, and /device:CPU:n for any"
    with pytest.raises(DeviceError, match=message) as caught:
        place(name)
    assert "leave device out" in str(caught.value)


@pytest.mark.parametrize("name", ["GPU", "", "/device:GPU:", "0", "/job:a/device:GPU:0", 3])
def test_what_is_no_devices_name_is_refused(gpus: Any, name: Any) -> None:
    with pytest.raises(DeviceError, match=r"is not a device's name: write it like '/device:GPU:0'"):
        place(name)


def test_a_device_error_is_a_value_error() -> None:
    assert issubclass(DeviceError, ValueError)


@pytest.mark.parametrize(("on_host", "variables"), [(True, HOST), (False, "/device:CPU:1")])
def test_variables_are_on_the_host_or_the_device(gpus: Any, on_host: bool, variables: str) -> None:
    assert place(None, variables_on_host=on_host).variable_device == variables


# A session's config.


def test_the_session_gets_as_many_logical_cpus_as_the_device_needs() -> None:
    placement = Placement(device="/device:CPU:2")
    assert placement.configure(None).device_count["CPU"] == 3
    more = v1.ConfigProto(device_count={"CPU": 5})
    assert placement.configure(more).device_count["CPU"] == 5


def test_a_gpu_needs_no_second_cpu() -> None:
    assert not Placement(device="/device:GPU:0").configure(None).device_count


@pytest.mark.parametrize(
    ("limit", "replicas", "stages", "threads"),
    [("8", 1, 2, 4), ("8", 2, 2, 2), ("8", 3, 1, 2), ("2", 1, 4, 1), ("8", 1, 1, 0)],
)
def test_several_cpu_devices_divide_the_threads_of_operations(
    monkeypatch: pytest.MonkeyPatch, limit: str, replicas: int, stages: int, threads: int
) -> None:
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", limit)
    placement = place("/device:CPU:1", num_replicas=replicas, devices_per_replica=stages)
    assert placement.configure(None).intra_op_parallelism_threads == threads
    own = v1.ConfigProto(intra_op_parallelism_threads=7)
    assert placement.configure(own).intra_op_parallelism_threads == 7


def test_the_users_config_is_copied_and_kept() -> None:
    config = v1.ConfigProto(allow_soft_placement=True)
    configured = Placement(device="/device:CPU:1").configure(config)
    assert configured.allow_soft_placement
    assert not config.device_count


# Variables in a plain graph.


def _nodes_of(session_run: Callable[[Any, Any], Any]) -> dict[str, tuple[str, str]]:
    """Runs once and returns the op and the device of every node that ran."""
    metadata = v1.RunMetadata()
    session_run(v1.RunOptions(output_partition_graphs=True), metadata)
    return {
        node.name: (node.op, node.device.rsplit("device:", 1)[-1])
        for graph in metadata.partition_graphs
        for node in graph.node
    }


def _run_a_step(placement: Placement, *, inside_loop: bool = False) -> dict[str, tuple[str, str]]:
    """Reads a variable three times on the device, updates it with Adam, returns what ran."""

    def create(next_creator: Any, **kwargs: Any) -> Any:
        return placement.create_variable(next_creator, inside_loop=inside_loop, **kwargs)

    with tf.variable_creator_scope(create), placement.on_device():
        weight = v1.get_variable("weight", [2], initializer=v1.ones_initializer())
        loss = tf.reduce_sum(tf.sin(weight) + tf.cos(weight) * weight, name="loss")
        step = v1.train.AdamOptimizer(0.1).minimize(loss)
    with v1.Session(config=placement.configure(None)) as session:
        session.run(v1.global_variables_initializer())
        return _nodes_of(lambda options, data: session.run([step, loss], None, options, data))


def _devices(nodes: dict[str, tuple[str, str]], op: str, prefix: str = "") -> list[str]:
    return sorted(d for name, (o, d) in nodes.items() if o == op and name.startswith(prefix))


@pytest.mark.usefixtures("graph")
def test_a_host_variable_crosses_once_however_often_it_is_read() -> None:
    nodes = _run_a_step(Placement(device="/device:CPU:1"))
    assert _devices(nodes, "VarHandleOp", "weight") == ["CPU:0"] * 3  # Itself and two slots.
    assert _devices(nodes, "ReadVariableOp", "weight") == ["CPU:0"]
    assert set(_devices(nodes, "Sin")) == set(_devices(nodes, "Sum", "loss")) == {"CPU:1"}
    assert _devices(nodes, "ResourceApplyAdam") == ["CPU:0"]


@pytest.mark.usefixtures("graph")
def test_a_device_variable_stays_there_with_its_slots_and_update() -> None:
    nodes = _run_a_step(Placement(device="/device:CPU:1", variables_on_host=False))
    assert set(_devices(nodes, "VarHandleOp", "weight")) == {"CPU:1"}
    assert _devices(nodes, "ResourceApplyAdam") == ["CPU:1"]


def _twice_read(trainable: bool, *, inside_loop: bool = False) -> list[float]:
    """Reads a host variable, adds 1, reads it again, all in one session call."""
    placement = Placement(device="/device:CPU:1")

    def create(next_creator: Any, **kwargs: Any) -> Any:
        return placement.create_variable(next_creator, inside_loop=inside_loop, **kwargs)

    with tf.variable_creator_scope(create), placement.on_device():
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer(), trainable=trainable)
        before = variable + 0.0
        with tf.control_dependencies([before]), tf.control_dependencies([variable.assign_add(1.0)]):
            after = variable + 0.0
    with v1.Session(config=placement.configure(None)) as session:
        session.run(v1.global_variables_initializer())
        return [float(value) for value in session.run([before, after])]


@pytest.mark.usefixtures("graph")
def test_a_weight_read_after_its_update_is_not_the_copy() -> None:
    assert _twice_read(trainable=True) == [0.0, 1.0]


@pytest.mark.usefixtures("graph")
def test_a_weights_constraint_holds_for_the_updated_weight() -> None:
    placement = Placement(device="/device:CPU:1")

    def create(next_creator: Any, **kwargs: Any) -> Any:
        return placement.create_variable(next_creator, **kwargs)

    def clip(weight: Any) -> Any:
        return tf.clip_by_value(weight, -0.25, 0.25)

    with tf.variable_creator_scope(create), placement.on_device():
        start = v1.zeros_initializer()
        weight = v1.get_variable("weight", [2], initializer=start, constraint=clip)
        loss = tf.reduce_sum(weight * [1.0, -0.1])
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with v1.Session(config=placement.configure(None)) as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight).tolist() == pytest.approx([-0.25, 0.1])


@pytest.mark.usefixtures("graph")
def test_inside_a_loop_every_read_is_fresh() -> None:
    assert _twice_read(trainable=True, inside_loop=True) == [0.0, 1.0]


@pytest.mark.usefixtures("graph")
def test_a_counter_is_read_afresh() -> None:
    assert _twice_read(trainable=False) == [0.0, 1.0]


@pytest.mark.usefixtures("graph")
def test_a_users_own_caching_device_is_kept() -> None:
    placement = Placement(device="/device:CPU:1")

    def create(next_creator: Any, **kwargs: Any) -> Any:
        return placement.create_variable(next_creator, **kwargs)

    with tf.variable_creator_scope(create):
        variable = v1.get_variable("v", [2], caching_device="/device:CPU:3")
    assert variable.device == HOST
    assert tf.convert_to_tensor(variable).device == "/device:CPU:3"


def test_the_host_counts_the_steps_wherever_the_weights_are() -> None:
    placement = place("CPU:1", variables_on_host=False)
    with tf.Graph().as_default(), tf.variable_creator_scope(placement.create_variable):
        assert v1.train.create_global_step().device == "/device:CPU:0"
        assert v1.get_variable("weight", [2]).device == "/device:CPU:1"
