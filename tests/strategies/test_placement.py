"""The device that computes, the one that holds the variables, and a worker's replicas."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster import ClusterError, instances
from tfdist.cluster.instances import instance_environment
from tfdist.strategies import (
    DeviceError,
    LocalStrategy,
    MultiWorkerStrategy,
    Placement,
    strategy_for_run,
    synchronize,
)
from tfdist.strategies.placement import (
    HOST,
    ReplicaCount,
    _report_overridden,
    count_replicas,
    own_gpu,
    place,
)


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


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *((name, "/device:GPU:1") for name in ("/device:GPU:1", "GPU:1", "/gpu:1", "gpu:1")),
        ("/device:CPU:0", HOST),
        ("CPU:1", "/device:CPU:1"),
        ("/cpu:3", "/device:CPU:3"),
        (None, "/device:GPU:0"),
    ],
)
def test_devices_can_be_named_in_tensorflows_ways(gpus: Any, name: str, device: str) -> None:
    gpus(2)
    assert place(name).device == device


def test_without_a_gpu_the_second_logical_cpu_is_the_device(gpus: Any) -> None:
    assert place(None) == Placement(device="/device:CPU:1", variables_on_host=True)


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
    assert isinstance(caught.value, ValueError)
    assert "leave device out" in str(caught.value)


@pytest.mark.parametrize("name", ["GPU", "", "/device:GPU:", "0", "/job:a/device:GPU:0", 3])
def test_what_is_no_devices_name_is_refused(gpus: Any, name: Any) -> None:
    with pytest.raises(DeviceError, match=r"is not a device's name: write it like '/device:GPU:0'"):
        place(name)


# A session's config.


def test_the_session_gets_as_many_logical_cpus_as_the_device_needs() -> None:
    placement = Placement(device="/device:CPU:2")
    assert placement.configure(None).device_count["CPU"] == 3
    own = v1.ConfigProto(device_count={"CPU": 5}, allow_soft_placement=True)
    assert placement.configure(own) == own
    own.device_count["CPU"] = 1
    assert placement.configure(own).allow_soft_placement
    assert own.device_count["CPU"] == 1  # The user's config stays.
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

    create = partial(placement.create_variable, inside_loop=inside_loop)
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

    create = partial(placement.create_variable, inside_loop=inside_loop)
    with tf.variable_creator_scope(create), placement.on_device():
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer(), trainable=trainable)
        before = variable + 0.0
        with tf.control_dependencies([before]), tf.control_dependencies([variable.assign_add(1.0)]):
            after = variable + 0.0
    with v1.Session(config=placement.configure(None)) as session:
        session.run(v1.global_variables_initializer())
        return [float(value) for value in session.run([before, after])]


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    ("trainable", "inside_loop"), [(True, False), (True, True), (False, False)]
)
def test_a_variable_read_after_its_update_is_not_the_copy(
    trainable: bool, inside_loop: bool
) -> None:
    assert _twice_read(trainable, inside_loop=inside_loop) == [0.0, 1.0]


@pytest.mark.usefixtures("graph")
def test_a_weights_constraint_holds_for_the_updated_weight() -> None:
    placement = Placement(device="/device:CPU:1")

    def clip(weight: Any) -> Any:
        return tf.clip_by_value(weight, -0.25, 0.25)

    with tf.variable_creator_scope(placement.create_variable), placement.on_device():
        start = v1.zeros_initializer()
        weight = v1.get_variable("weight", [2], initializer=start, constraint=clip)
        loss = tf.reduce_sum(weight * [1.0, -0.1])
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with v1.Session(config=placement.configure(None)) as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        assert session.run(weight).tolist() == pytest.approx([-0.25, 0.1])


@pytest.mark.usefixtures("graph")
def test_a_users_own_caching_device_is_kept() -> None:
    placement = Placement(device="/device:CPU:1")
    with tf.variable_creator_scope(placement.create_variable):
        variable = v1.get_variable("v", [2], caching_device="/device:CPU:3")
    assert variable.device == HOST
    assert tf.convert_to_tensor(variable).device == "/device:CPU:3"


def test_the_host_counts_the_steps_wherever_the_weights_are() -> None:
    placement = place("CPU:1", variables_on_host=False)
    with tf.Graph().as_default(), tf.variable_creator_scope(placement.create_variable):
        assert v1.train.create_global_step().device == "/device:CPU:0"
        assert v1.get_variable("weight", [2]).device == "/device:CPU:1"


# The number of replicas: the launcher's and the program's.


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what `tfdist run` sets for the only instance of a run, or as the numbers say."""

    def set_variables(**numbers: int) -> None:
        alone = {
            "index": 0,
            "num_instances": 1,
            "local_index": 0,
            "num_total_replicas": 2,
            "devices_per_replica": 1,
        }
        for name, value in instance_environment(**{**alone, **numbers}).items():
            monkeypatch.setenv(name, value)

    _report_overridden.cache_clear()
    return set_variables


def overridden(number: int) -> str:
    return f"The number of replicas is overridden by tfdist run. The new value is {number}.\n"


@pytest.mark.parametrize(("requested", "number"), [(None, 1), (1, 1), (3, 3)])
def test_without_a_launcher_the_program_decides(requested: int | None, number: int) -> None:
    assert count_replicas(requested) == ReplicaCount(number=number)


@pytest.mark.parametrize("requested", [None, 2])
def test_a_program_that_agrees_with_the_launcher_hears_nothing(
    launched: Any, requested: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(devices_per_replica=3)
    assert count_replicas(requested) == ReplicaCount(number=2, devices_each=3)
    assert capsys.readouterr().err == ""


def test_the_launchers_number_wins_and_the_first_instance_says_so_once(
    launched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(num_instances=2, num_total_replicas=6, index=1, local_index=1)
    assert count_replicas(2).number == 3
    assert capsys.readouterr().err == ""
    launched(num_instances=2, num_total_replicas=6)
    for _ in range(2):
        assert count_replicas(6).number == 3
    assert capsys.readouterr().err == overridden(3)


@pytest.mark.parametrize("requested", [0, -1, 1.5, True, "2"])
def test_a_number_that_is_none_is_refused_with_a_launcher_too(
    launched: Any, requested: Any
) -> None:
    launched()
    with pytest.raises(ValueError, match="num_replicas must be an integer of at least 1, got "):
        count_replicas(requested)


def test_instances_with_different_numbers_cannot_train_together(
    launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(num_instances=2)
    monkeypatch.setenv("TFDIST_UNIFORM_REPLICAS_PER_INSTANCE", "0")
    monkeypatch.setenv("TFDIST_NUM_TOTAL_REPLICAS", "3")
    with pytest.raises(ClusterError, match="has 1 of 3 replicas and others have more or fewer"):
        LocalStrategy()


def test_every_strategy_and_the_device_config_take_the_launchers_number(
    launched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(num_total_replicas=3)
    for strategy in (LocalStrategy(), MultiWorkerStrategy(), strategy_for_run()):
        assert strategy.num_replicas_in_sync == 3
    assert tfe.DeviceConfig().num_replicas == 3
    assert capsys.readouterr().err == ""
    for strategy in (
        LocalStrategy(2),
        MultiWorkerStrategy(num_replicas=2),
        strategy_for_run(num_replicas=2),
    ):
        assert strategy.num_replicas_in_sync == 3
    assert tfe.DeviceConfig(num_replicas=2).num_replicas == 3
    assert capsys.readouterr().err == overridden(3)


def test_an_evaluator_is_alone_and_keeps_the_programs_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TFDIST_NUM_LOCAL_REPLICAS", "4")
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}}',
    )
    synchronize()
    strategy = strategy_for_run(num_replicas=2)
    assert isinstance(strategy, MultiWorkerStrategy)
    assert strategy.num_replicas_in_sync == 2
    assert (instances.num_instances(), instances.is_launched()) == (1, False)


def test_replicas_skip_each_others_devices() -> None:
    placement = place(None, num_replicas=3, devices_per_replica=2)
    assert placement.devices == ("/device:CPU:1", "/device:CPU:3", "/device:CPU:5")
    assert placement.configure(None).device_count["CPU"] == 7


def test_the_launcher_says_how_many_devices_a_replica_has(launched: Any) -> None:
    launched(devices_per_replica=2)
    strategy = LocalStrategy()
    with tf.Graph().as_default(), strategy.scope():
        where = strategy.run(lambda: tf.constant(1.0).device)
    assert strategy.extended.worker_devices == ("/device:CPU:1", "/device:CPU:3")
    assert [str(device)[-5:] for device in strategy.experimental_local_results(where)] == [
        "CPU:1",
        "CPU:3",
    ]
    config = strategy.update_config_proto(v1.ConfigProto())
    assert config.device_count["CPU"] == 5


@pytest.mark.parametrize(
    ("count", "replicas", "each", "message"),
    [
        (3, 2, 2, r"2 replicas of 2 devices from /device:GPU:0 on need 4 GPUs.*num_replicas to 1 "),
        (1, 1, 2, r"1 replicas of 2 devices from .* need 2 GPUs.*Set device to '/device:CPU:1'"),
        (2, 3, 1, r"3 replicas from /device:GPU:0 on need 3 GPUs.*Set num_replicas to 2 at most"),
    ],
)
def test_more_devices_than_there_are_is_refused(
    gpus: Any, count: int, replicas: int, each: int, message: str
) -> None:
    gpus(count)
    with pytest.raises(DeviceError, match=message):
        place(None, num_replicas=replicas, devices_per_replica=each)


def test_the_workers_of_a_machine_take_gpus_of_their_own(gpus: Any) -> None:
    gpus(8)
    assert [own_gpu(index, 4) for index in range(2)] == ["/device:GPU:0", "/device:GPU:4"]
    gpus(3)
    assert [own_gpu(index, 1) for index in range(4)] == [
        "/device:GPU:0",
        "/device:GPU:1",
        "/device:GPU:2",
        "/device:GPU:0",
    ]
    gpus(1)  # Each sees only its own.
    assert [own_gpu(index, 1) for index in range(2)] == ["/device:GPU:0"] * 2
    gpus(0)
    assert own_gpu(1, 1) is None
