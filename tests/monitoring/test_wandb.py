"""WandbHook: scalars for Weights & Biases."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tfdist.monitoring import WandbHook
from tfdist.monitoring.wandb import choose_mode

Train = Callable[..., Any]


class Run:
    """A run of the stand-in: what was logged, and whether it was finished."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, data: dict[str, float], step: int) -> None:
        assert not self.is_finished
        self.logged.append((step, data))

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Run]:
    """The runs of a stand-in for wandb: its `init`, and `log` and `finish` of what it returns."""
    found: list[Run] = []

    def init(**arguments: Any) -> Run:
        found.append(Run(arguments))
        return found[-1]

    stand_in = ModuleType("wandb")
    stand_in.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


def test_a_training_is_one_run_with_its_scalars_by_step(train: Train, runs: list[Run]) -> None:
    hook = WandbHook("mnist", ["loss", "half"], every_n_steps=2, name="a", config={"rate": 0.1})
    train([hook], steps=5)
    (run,) = runs
    assert run.logged == [(2, {"loss": 20, "half": 10}), (4, {"loss": 40, "half": 20})]
    assert run.is_finished
    assert run.arguments == {
        "project": "mnist",
        "name": "a",
        "config": {"rate": 0.1},
        "dir": None,
        "mode": "offline",
    }
    train([hook], steps=1)
    assert runs[1].logged == [(6, {"loss": 60, "half": 30})]


def test_without_a_key_the_run_is_offline_and_one_line_says_so(
    train: Train, runs: list[Run], logged: list[str], tmp_path: Path
) -> None:
    train([WandbHook("mnist", directory=tmp_path / "wb")], steps=1)
    assert runs[0].arguments["mode"] == "offline"
    assert runs[0].arguments["dir"] == str(tmp_path / "wb")
    assert (tmp_path / "wb").is_dir()
    assert len([line for line in logged if "no key is found" in line]) == 1


@pytest.mark.usefixtures("runs")
def test_a_key_is_found_where_wandb_login_writes_it(tmp_path: Path) -> None:
    assert choose_mode({}) == "offline"
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password abc\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert choose_mode({}) == "online"
    assert choose_mode({"WANDB_BASE_URL": "https://wandb.example.org"}) == "offline"
    assert choose_mode({"NETRC": str(tmp_path / "none")}) == "offline"
    assert choose_mode({"NETRC": str(tmp_path / "none"), "WANDB_API_KEY": "abc"}) == "online"
    assert choose_mode({"WANDB_MODE": "disabled"}) is None
    (tmp_path / ".netrc").write_bytes(b"\xff")
    assert choose_mode({}) == "offline"


def test_only_worker_0_has_a_run_and_needs_wandb(
    train: Train, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.monitoring.wandb.own_worker_index", lambda: 1)
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    train([WandbHook("mnist", every_n_steps=1)], steps=2)
    assert runs == []
