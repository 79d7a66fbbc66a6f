"""The settings of Horovod and Open MPI, and those that stay the user's."""

from importlib.resources import files
from pathlib import Path

import pytest

from tfdist.strategies.horovod import settings
from tfdist.strategies.horovod.settings import describe_settings, missing_settings

RULES = str(files("tfdist.strategies.horovod") / "open_mpi_rules.txt")
DEFAULTS = {
    "HOROVOD_CYCLE_TIME": "0.1",
    "HOROVOD_FUSION_THRESHOLD": "1048576",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl_tcp_flags": "send",
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    "OMPI_MCA_coll_tuned_dynamic_rules_filename": RULES,
}
SAID = (
    "HOROVOD_CYCLE_TIME=0.1, HOROVOD_FUSION_THRESHOLD=1048576, mpi_yield_when_idle=1, "
    "btl_tcp_flags=send"
)


def test_what_the_user_has_not_set_is_set_and_said() -> None:
    assert missing_settings({"PATH": "/bin"}) == DEFAULTS
    assert missing_settings(DEFAULTS) == {}
    assert describe_settings(DEFAULTS) == f"{SAID}, coll_tuned rings from 1 MB on"


def test_a_transport_is_left_out_of_pypis_open_mpi_unless_the_user_configures_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").touch()
    (tmp_path / "share" / "openmpi").mkdir(parents=True)
    environ = {"OPAL_PREFIX": str(tmp_path)}
    monkeypatch.setattr(settings, "_USERS_FILE", tmp_path / "mca-params.conf")
    assert missing_settings(environ) == {**DEFAULTS, "OMPI_MCA_btl": "^ofi"}
    assert "OMPI_MCA_btl" not in missing_settings({**environ, "OMPI_MCA_btl": "tcp,self"})
    (tmp_path / "mca-params.conf").touch()
    assert missing_settings(environ) == DEFAULTS


def test_what_the_user_has_set_is_kept_and_named() -> None:
    own = {"HOROVOD_CYCLE_TIME": "5", "OMPI_MCA_mpi_yield_when_idle": "0"}
    missing = missing_settings(own)
    assert not missing.keys() & own.keys()
    assert missing.keys() | own.keys() == DEFAULTS.keys()
    assert describe_settings({**own, **missing}) == (
        "HOROVOD_CYCLE_TIME=5 (yours), HOROVOD_FUSION_THRESHOLD=1048576, "
        "mpi_yield_when_idle=0 (yours), btl_tcp_flags=send, coll_tuned rings from 1 MB on"
    )


def test_nothing_of_open_mpi_is_said_where_horovod_does_not_use_it() -> None:
    said = describe_settings({**DEFAULTS, "HOROVOD_CYCLE_TIME": "5"}, over_mpi=False)
    assert said == "HOROVOD_CYCLE_TIME=5 (yours), HOROVOD_FUSION_THRESHOLD=1048576"


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_dynamic_rules", "0"), ("use_dynamic_rules", "1"), ("allreduce_algorithm", "3")],
)
def test_no_rules_are_put_beside_the_users_own_choice_of_algorithms(name: str, value: str) -> None:
    own = {f"OMPI_MCA_coll_tuned_{name}": value}
    missing = missing_settings(own)
    assert not [added for added in missing if "coll_tuned" in added]
    expected = f"{SAID}, coll_tuned_{name}={value} (yours)"
    assert describe_settings({**own, **missing}) == expected


def test_the_rules_are_complete() -> None:
    """Open MPI takes a file that it cannot read for none, and says nothing."""
    text = "".join(line.split("#")[0] + "\n" for line in Path(RULES).read_text().splitlines())
    numbers = [int(word) for word in text.split()]
    assert numbers[:4] == [1, 2, 1, 2]  # One collective: all-reduce; one size of groups: from 2 on.
    num_rules, rules = numbers[4], numbers[5:]
    assert [rules[4 * i : 4 * i + 4] for i in range(num_rules)] == [
        [0, 0, 0, 0],  # As Open MPI decides.
        [1 << 20, 4, 0, 0],  # Rings.
    ]
    assert len(rules) == 4 * num_rules
