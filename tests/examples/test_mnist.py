"""The example `mnist/train.py`, alone and on several workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = str(Path(__file__).parents[2] / "examples" / "mnist" / "train.py")
GLOBAL_BATCH = 48
NUM_STEPS = 120
OPTIONS = ["--num-steps", str(NUM_STEPS), "--learning-rate", "0.005"]


def _accuracy(printed: list[Any]) -> float:
    metrics = json.loads(printed[0].stdout.splitlines()[-1])
    assert metrics["global_step"] == NUM_STEPS
    assert [worker.stdout for worker in printed[1:]] == [""] * (len(printed) - 1)
    return metrics["accuracy"]


def test_two_workers_reach_94_percent_and_what_one_reaches_also_in_half_precision(
    run_program: Callable[..., list[Any]],
) -> None:
    whole, half = (["--batch-size", str(GLOBAL_BATCH // number), *OPTIONS] for number in (1, 2))
    alone = _accuracy(run_program([SCRIPT, *whole], engine="none"))
    for engine, precision in (("grpc", "float32"), ("horovod", "mixed_bfloat16")):
        options = ["--strategy", engine, "--precision", precision, *half]
        accuracy = _accuracy(run_program([SCRIPT, *options], engine=engine, num_workers=2))
        assert accuracy >= 0.94
        assert abs(accuracy - alone) <= 0.01


def test_the_full_set_is_refused_in_one_line_where_it_cannot_be_downloaded(
    fake_cluster: Any, tmp_path: Path
) -> None:
    [worker] = fake_cluster.run_script(
        [SCRIPT, "--strategy", "none", "--data", "full"],
        engine="none",
        env={
            "HOME": str(tmp_path),  # No earlier download.
            "https_proxy": "http://127.0.0.1:9",  # No process listens there: no download now.
        },
        check=False,
        forked=True,
    )
    assert worker.returncode == 1
    assert "--data full cannot be downloaded" in worker.stderr.splitlines()[-1]
    assert "Use --data sample" in worker.stderr.splitlines()[-1]
