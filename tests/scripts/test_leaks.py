"""Two workers that train again and again: `scripts/benchmarks/leaks.py`, which has longer runs."""

import json
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "scripts" / "benchmarks" / "leaks.py"


def test_calls_of_fit_leave_no_threads_and_descriptors(fake_cluster: Any) -> None:
    command = [str(PROGRAM), "fit", "--steps", "20", "--calls", "6"]
    [first, _] = fake_cluster.run_script(command, forked=True, check=False)
    found = json.loads(first.stdout.splitlines()[-1])
    for name in ("threads", "descriptors"):
        used = found["calls"][name]
        assert max(used[-2:]) <= max(used[:-2]), (name, used)
