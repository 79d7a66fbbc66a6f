"""Horovod's DistributedOptimizer and Keras 3: refused, instead of a model for each rank."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.process import horovod_keras
from tfdist.testing import engine_problem

pytestmark = pytest.mark.processes

# Stands for Horovod, and for the class that all optimizers of Keras 3 have as a base.
STUBS = {
    "horovod/__init__.py": "",
    "horovod/_keras.py": """
import sys, types
hvd = types.SimpleNamespace(size=lambda: int(sys.argv[2]))
def create_distributed_optimizer(keras, optimizer, name):
    return name
""",
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/optimizers/__init__.py": "",
    "keras/src/optimizers/base_optimizer.py": "class BaseOptimizer: pass",
    "program.py": """
import site, sys
site.addsitedir(sys.argv[1])
from horovod._keras import create_distributed_optimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer
class Adam(BaseOptimizer): pass
class Other: pass
print(create_distributed_optimizer(None, Other(), "of another Keras"))
print(create_distributed_optimizer(None, Adam(), name="of Keras 3"))
print("tfdist" in sys.modules)
""",
}


def test_a_program_without_tfdist_is_refused_if_it_is_one_of_several(tmp_path: Path) -> None:
    for name, text in STUBS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    site = tmp_path / "site"
    site.mkdir()
    horovod_keras.write_files(site)
    command = [sys.executable, "-S", str(tmp_path / "program.py"), str(site)]
    alone, one_of_two = (
        subprocess.run([*command, size], capture_output=True, text=True, check=False)
        for size in ("1", "2")
    )
    assert alone.stdout.splitlines() == ["of another Keras", "of Keras 3", "False"], alone.stderr
    assert one_of_two.stdout.splitlines() == ["of another Keras"]
    last = one_of_two.stderr.splitlines()[-1]
    assert last.startswith(
        "ValueError: Horovod's DistributedOptimizer reduces nothing with Keras 3's Adam: each rank"
    )


def _errors() -> list[str]:
    import horovod.tensorflow.keras as hvd
    import keras
    import tf_keras

    hvd.init()
    errors = []
    for optimizer in (keras.optimizers.SGD(0.1), tf_keras.optimizers.SGD(0.1)):
        try:
            hvd.DistributedOptimizer(optimizer)
            errors.append("")
        except ValueError as error:
            errors.append(str(error))
    return errors


@pytest.mark.skipif(engine_problem("horovod") is not None, reason=str(engine_problem("horovod")))
def test_two_real_ranks_are_refused_with_keras_3_and_not_with_tf_keras(fake_cluster: Any) -> None:
    for of_keras_3, of_tf_keras in fake_cluster.run(_errors, engine="horovod"):
        assert of_keras_3.startswith("Horovod's DistributedOptimizer reduces nothing with Keras 3")
        assert of_tf_keras == ""
