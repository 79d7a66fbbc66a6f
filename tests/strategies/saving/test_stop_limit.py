"""A save that is too long for a stop by a signal is reported beforehand."""

import pytest

from tfdist.cluster.tasks import ClusterError
from tfdist.strategies.saving.stop_limit import StopLimit


def test_a_save_of_more_than_half_of_a_stop_is_reported_once(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFDIST_GRACE_S", "30")
    limit = StopLimit()
    limit.note("backup", 15.0)
    assert logged == []
    limit.note("checkpoint of step 7", 15.5)
    limit.note("checkpoint of step 8", 99.0)
    assert logged == [
        "The checkpoint of step 7 took 15.5 s to save, and a stop by a signal may take 30 s. If "
        "the signal comes during a save, a second save follows and may not finish: steps since "
        "the last checkpoint would be lost. Raise --grace (for Slurm --save-before-end) to 32 at "
        "least."
    ]


def test_without_a_launcher_a_stop_has_no_limit(
    logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFDIST_GRACE_S", raising=False)
    StopLimit().note("checkpoint", 1e6)
    assert logged == []


def test_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_GRACE_S", "long")
    with pytest.raises(ClusterError, match='TFDIST_GRACE_S is "long": a number'):
        StopLimit()
