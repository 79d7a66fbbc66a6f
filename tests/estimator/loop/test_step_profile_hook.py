"""The arguments of a profile: the hook's, and those that the launcher passes on."""

from pathlib import Path

import pytest

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import read_profile
from tfdist.monitoring import StepProfileHook


def test_steps_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first_step must not be above last_step, got 12 and 10"):
        StepProfileHook(tmp_path, 12, 10)


def test_the_launcher_asks_by_two_variables() -> None:
    assert read_profile({}) is None
    assert read_profile({"TFDIST_PROFILE_STEPS": "1:2"}) is None
    assert read_profile({"TFDIST_PROFILE": "/here"}) == ("/here", 10, 12)
    requested = {"TFDIST_PROFILE": "/here", "TFDIST_PROFILE_STEPS": "3:3"}
    assert read_profile(requested) == ("/here", 3, 3)
    with pytest.raises(ClusterError, match='TFDIST_PROFILE_STEPS: got "4:3", allowed are'):
        read_profile({**requested, "TFDIST_PROFILE_STEPS": "4:3"})
