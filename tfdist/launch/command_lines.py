"""The commands of a run as a user could type them, each with its host, log and environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from tfdist.launch.plan import Plan
from tfdist.launch.worker_names import joined_names

_SECRET_VARIABLE = re.compile("TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)
_SECRET_OPTION = re.compile(
    r"(?:--?|.*[-_])(?:token|secret|passwd|password|credentials?|(?:api|access|secret|private)[-_]?key)",
    re.IGNORECASE,
)
_HIDDEN = "***"


def command_lines(plan: Plan) -> list[str]:
    """Returns lines that can be pasted into terminals to start each worker by hand.

    What several workers have in common is exported once. Values of variables and options whose
    names say that they are secret are hidden.
    """
    alone = [w for w in plan.workers if not w.replicas]
    instances = [w for w in plan.workers if w.replicas]
    shared: dict[str, str] = {}
    if len(instances) > 1:
        first, *others = [w.environment for w in instances]
        shared = {
            name: value
            for name, value in first.items()
            if all(other.get(name) == value for other in others)
        }
    lines: list[str] = []
    # Those with nothing in common come first: what is exported below is not for them.
    for workers, exported in ((alone, {}), (instances, shared)):
        if exported:
            names = joined_names(worker.name for worker in workers)
            lines += [f"# {names}", f"export {_assignments(exported)}"]
        for worker in workers:
            own = {k: v for k, v in worker.environment.items() if k not in exported}
            lines.append(f"# {worker.name} on {worker.host}, log: {worker.log_path}")
            lines.append(f"{_assignments(own)} {command_text(worker.command)}".lstrip())
    if any(_HIDDEN in line for line in lines):
        lines.append(f"# {_HIDDEN} stands for a secret")
    return lines


def command_text(command: Sequence[str]) -> str:
    """Returns a command as it is typed into a shell, the values of secret options hidden."""
    shown: list[str] = []
    for word in command:
        name, equals, _ = word.partition("=")
        if shown and shown[-1].startswith("-") and _SECRET_OPTION.fullmatch(shown[-1]):
            shown.append(_HIDDEN)
        elif equals and _SECRET_OPTION.fullmatch(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(word)
    return " ".join(_quoted(word) for word in shown)


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(
        f"{name}={_HIDDEN if _SECRET_VARIABLE.search(name) else shlex.quote(value)}"
        for name, value in sorted(variables.items())
    )


def _quoted(word: str) -> str:
    return word if word.endswith(_HIDDEN) else shlex.quote(word)
