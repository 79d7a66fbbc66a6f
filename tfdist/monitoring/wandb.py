"""Scalars for Weights & Biases. Needs wandb, which is imported when the hook is made."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import tensorflow.compat.v1 as v1

from tfdist.monitoring.scalars import Chosen, ScalarsHook, load_package, own_worker_index

_SERVER = "https://api.wandb.ai"


class WandbHook(ScalarsHook):
    """Records scalars in a run of Weights & Biases.

    Of several workers only worker 0 has a run; the others may have the hook as well, and do not
    need wandb. Without a key (WANDB_API_KEY, or a line of ~/.netrc, where `wandb login` writes it)
    the run is offline: its files stay on this machine until `wandb sync`. WANDB_MODE has
    precedence.

    Args:
      project: The project's name.
      scalars: As for `ScalarsHook`.
      every_n_steps: Steps between two records; "step" is the global step.
      name: The run's name; None takes one of wandb's.
      config: Settings to keep with the run, for example the hyper-parameters.
      directory: The folder in which wandb makes its folder "wandb"; None is the current one.

    Raises:
      ImportError: If wandb is not installed, on worker 0.
      ValueError: As in `ScalarsHook`.
    """

    def __init__(
        self,
        project: str,
        scalars: Chosen = ("loss",),
        every_n_steps: int = 100,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(scalars, every_n_steps)
        is_first = own_worker_index() == 0
        self._wandb = load_package("WandbHook", "wandb", "tfdist[wandb]") if is_first else None
        self._arguments: dict[str, Any] = {
            "project": project,
            "name": name,
            "config": None if config is None else dict(config),
        }
        self._directory = None if directory is None else os.fspath(directory)
        self._run: Any = None

    def start(self, step: int) -> None:
        if self._wandb is None or self._run is not None:  # A recovered session goes on.
            return
        mode = choose_mode(os.environ)
        if mode == "offline":
            v1.logging.info(
                "WandbHook: no key is found in WANDB_API_KEY or ~/.netrc: the run is offline. "
                "Upload it with: wandb sync"
            )
        if self._directory is not None:
            os.makedirs(self._directory, exist_ok=True)
        self._run = self._wandb.init(mode=mode, dir=self._directory, **self._arguments)

    def report(self, step: int, scalars: dict[str, float]) -> None:
        if self._run is not None:
            self._run.log(scalars, step=step)

    def end(self, session: Any) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def choose_mode(environment: Mapping[str, str]) -> str | None:
    """Returns "online" or "offline" as there is a key or none; None if WANDB_MODE decides."""
    if environment.get("WANDB_MODE"):
        return None
    return "online" if environment.get("WANDB_API_KEY") or _has_login(environment) else "offline"


def _has_login(environment: Mapping[str, str]) -> bool:
    host = urlsplit(environment.get("WANDB_BASE_URL") or _SERVER).hostname or ""
    given = environment.get("NETRC")
    for path in [given] if given else ["~/.netrc", "~/_netrc"]:
        try:
            if netrc.netrc(os.path.expanduser(path)).authenticators(host):
                return True
        except (OSError, ValueError, netrc.NetrcParseError):  # ValueError: not UTF-8.
            continue
    return False
