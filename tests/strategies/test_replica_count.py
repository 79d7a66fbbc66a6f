"""The replicas of a worker and their devices: the launcher's settings and the program's."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.cluster import ClusterError
from tfdist.cluster.instances import instance_environment
from tfdist.strategies import DeviceError, LocalStrategy, MultiWorkerStrategy, strategy_for_run
from tfdist.strategies.placement import (
    ReplicaCount,
    _report_overridden,
    count_replicas,
    own_gpu,
    place,
)


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


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes TensorFlow report so many GPUs."""

    def gpus(count: int) -> None:
        found = [object()] * count
        monkeypatch.setattr(
            tf.config, "list_physical_devices", lambda kind=None: found if kind == "GPU" else []
        )

    return gpus


def overridden(number: int) -> str:
    return f"The number of replicas is overridden by tfdist run. The new value is {number}.\n"


# The number.


@pytest.mark.parametrize(("requested", "number"), [(None, 1), (1, 1), (3, 3)])
def test_without_a_launcher_the_program_decides(
    requested: int | None, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert count_replicas(requested) == ReplicaCount(number=number)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("requested", [None, 2])
def test_a_program_that_agrees_with_the_launcher_hears_nothing(
    launched: Any, requested: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(devices_per_replica=3)
    assert count_replicas(requested) == ReplicaCount(number=2, devices_each=3)
    assert capsys.readouterr().err == ""


def test_the_launcher_wins_and_says_so_in_one_line(
    launched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    launched()
    for _ in range(2):
        assert count_replicas(1).number == 2
    assert capsys.readouterr().err == overridden(2)


def test_the_number_is_that_of_each_instance_and_the_first_one_says_it(
    launched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(num_instances=2, num_total_replicas=6, index=1, local_index=1)
    assert count_replicas(2).number == 3
    assert capsys.readouterr().err == ""
    launched(num_instances=2, num_total_replicas=6)
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


# Who takes it.


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


def test_an_evaluator_keeps_the_programs_number(
    launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_NUM_LOCAL_REPLICAS", "4")
    monkeypatch.setenv(
        "TF_CONFIG",
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}}',
    )
    assert strategy_for_run(num_replicas=2).num_replicas_in_sync == 2


# The devices.


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
