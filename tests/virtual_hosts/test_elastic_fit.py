"""`fit` on three hosts, of which one goes away and comes back."""

import json
import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.testing.run import wait_until

PROGRAM = Path(__file__).with_name("elastic_fit.py")
_QUICK_START = Path(__file__).parents[1] / "quick_start" / "sitecustomize.py"
_LIMIT_S = 120.0
# Launcher and agents notice after 5 s of silence, and not after 20. Python reads the first file of
# this name alone, which therefore reads the other tests' as well.
_SHORT_SILENCE = f"""
import runpy
runpy.run_path({str(_QUICK_START)!r})
import tfdist.launch.workers.channel as channel
channel.SILENCE_S = 5.0
"""


def test_fit_goes_on_with_two_hosts_and_then_with_three_to_the_weights_of_one_process(
    network: Any,
    hosts: Any,
    ssh_agent: str,
    tmp_path: Path,
    within: Callable[[float], float],
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SHORT_SILENCE)
    environ = {
        "OMPI_MCA_plm_rsh_agent": ssh_agent,
        "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}",
    }
    size = ("--host=tfd1,tfd2,tfd3", "--num-instances=3", "--min-instances=2")
    restarts = ("--max-restarts=2", "--rejoin-interval=1", "--grace=5")
    shown = ("--host-subnet=10.77.0.0/24", "--output=all", "--progress=none")
    program = (str(PROGRAM), str(tmp_path))
    command = ["python", "-m", "tfdist", "run", *size, *restarts, *shown, "--", *program]
    with (tmp_path / "out").open("w") as out:
        launcher = hosts[0].popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=out)
    said = (tmp_path / "out").read_text

    def has_trained(number: int, start: int) -> bool:
        line = f" as one of {number}, start {start}\n"
        return wait_until(lambda: said().count(line) >= 3 * number, within(_LIMIT_S))

    try:
        assert has_trained(3, 0), said()
        network.cut(hosts[2])
        assert has_trained(2, 1), said()
        network.reconnect(hosts[2])
        assert launcher.wait(within(_LIMIT_S)) == 0, said()
    finally:
        launcher.kill()
        launcher.wait()
    assert "tfd3 cannot be reached: going on with 2 of 3 instances" in said()
    assert "tfd3 can be reached again: the workers save, and start again as 3" in said()
    found = [json.loads((tmp_path / str(worker)).read_text()) for worker in range(3)]
    assert found == [found[0]] * 3
    assert found[0]["steps"] == 5 * found[0]["epochs"]
    alone = tmp_path / "alone"
    alone.mkdir()
    runpy.run_path(str(PROGRAM))["train"](str(alone), found[0]["epochs"])
    expected = json.loads((alone / "0").read_text())
    assert expected["steps"] == found[0]["steps"]
    np.testing.assert_allclose(found[0]["weights"], expected["weights"], rtol=0, atol=1e-6)
