"""Random environments, command lines and files: each is read or refused without a stack."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tfdist.cluster import ClusterError, find_cluster, find_mpi_rank, parse_tf_config
from tfdist.launch.errors import UsageError
from tfdist.launch.options.hosts import parse_host_list, read_hostfile
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.options.run_options import RUN

few = settings(
    derandomize=True,
    deadline=None,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.iterdir() if path.name != "file"]


def check(read: Callable[[], object], refusal: type[Exception]) -> None:
    try:
        read()
    except refusal as error:
        assert len(str(error).splitlines()) in (1, 2)


words = st.sampled_from(["worker", "chief", "master", "ps", "evaluator", "cluster", "task"])
addresses = st.one_of(
    st.from_regex(r"(localhost|gpu[0-9]|10\.0\.0\.[0-9]|\[::[0-9]\]):[0-9]{1,5}", fullmatch=True),
    st.text(max_size=20),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), addresses, words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, st.text()), inner, max_size=4)
    ),
    max_leaves=12,
)
clusters = st.one_of(
    values, st.dictionaries(words, st.lists(addresses, max_size=4, unique=True), max_size=4)
)
tasks = st.one_of(
    values,
    st.fixed_dictionaries({"type": words, "index": st.one_of(st.integers(-2, 5), st.text())}),
)


@few
@given(st.one_of(st.text(), st.builds(json.dumps, values)))
@example("[" * 100_000)
@example("9" * 100_000)
@example('{"cluster": ' * 20_000)
def test_any_text_as_tf_config(text: str) -> None:
    check(lambda: parse_tf_config(text), ClusterError)


@few
@given(st.builds(json.dumps, st.fixed_dictionaries({"cluster": clusters, "task": tasks})))
def test_any_cluster_and_task_as_tf_config(text: str) -> None:
    check(lambda: find_cluster({"TF_CONFIG": text}), ClusterError)


numbers = st.one_of(
    st.integers(-2, 9).map(str), st.integers(0, 10**20).map(str), st.text(max_size=10)
)
hosts = st.one_of(
    st.text(alphabet="n019[]-,:. #", max_size=20),
    st.from_regex(r"n(\[[0-9]{1,2}(-[0-9]{1,3})?\]){0,2}(:[0-9])?(,m)?", fullmatch=True),
    st.text(max_size=10),
)
counts = st.one_of(
    st.from_regex(r"[0-9]{1,6}(\(x[0-9]{1,6}\))?(,[0-9]{1,6})?", fullmatch=True), st.text()
)


@few
@given(
    st.fixed_dictionaries(
        {
            "SLURM_JOB_ID": numbers,
            "SLURM_PROCID": numbers,
            "SLURM_STEP_NODELIST": hosts,
            "SLURM_STEP_NUM_TASKS": numbers,
            "SLURM_STEP_TASKS_PER_NODE": counts,
        },
        optional={"SLURM_NODEID": numbers, "SLURM_LOCALID": numbers, "SLURM_STEP_ID": numbers},
    )
)
@example(
    {
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": "n[0-99999]",
        "SLURM_STEP_NUM_TASKS": "99999900000",
        "SLURM_STEP_TASKS_PER_NODE": "999999(x100000)",
    }
)
def test_any_variables_of_slurm(environ: dict[str, str]) -> None:
    check(lambda: find_cluster(environ), ClusterError)


@few
@given(
    st.fixed_dictionaries(
        {},
        optional={
            f"{prefix}{name}": numbers
            for prefix in ("OMPI_COMM_WORLD_", "HOROVOD_", "PMI_", "MV2_COMM_WORLD_", "PMIX_")
            for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        },
    )
)
def test_any_variables_of_mpi(environ: dict[str, str]) -> None:
    check(lambda: find_mpi_rank(environ), ClusterError)
    check(lambda: find_cluster(environ), ClusterError)


options = st.sampled_from(sorted([*RUN.names, "-h", "--help"]))
option_values = st.one_of(
    numbers,
    hosts,
    st.sampled_from(["yes", "no", "grpc", "horovod", "none", "cores", "auto", "0", "1", "-1"]),
    st.text(max_size=10),
)
command_line_words = st.one_of(
    options,
    st.builds("{}={}".format, options, option_values),
    option_values,
    st.sampled_from(["--", "-", "-m", "cat", "sleep", "-vvv", "-x=", "-Ha", "--num-replicas=4"]),
)


@few
@given(st.lists(command_line_words, max_size=8))
def test_any_command_line(argv: list[str]) -> None:
    try:
        check(lambda: parse_run_options(argv, {"PATH": "/bin:/usr/bin"}), UsageError)
    except SystemExit as end:
        assert end.code == 0
        assert {"-h", "--help"} & set(argv)


@few
@given(st.lists(st.tuples(options, option_values), max_size=5))
def test_any_values_of_options(pairs: list[tuple[str, str]]) -> None:
    argv = [f"{name}={value}" for name, value in pairs if name.startswith("--")]
    check(lambda: parse_run_options([*argv, "cat"], {"PATH": "/bin:/usr/bin"}), UsageError)


@few
@given(st.one_of(hosts, st.lists(hosts, max_size=3).map(",".join)))
def test_any_list_of_hosts(text: str) -> None:
    check(lambda: parse_host_list(text), UsageError)


@few
@given(
    st.one_of(
        st.binary(max_size=60), st.lists(hosts, max_size=3).map(lambda h: "\n".join(h).encode())
    )
)
def test_any_hostfile(content: bytes) -> None:
    Path("file").write_bytes(content)
    check(lambda: read_hostfile("file"), UsageError)


yaml_words = st.text(alphabet="ab0:-[]{}&*!'\"|>%@`# \n\t,?", max_size=40)
yaml_options = st.builds(
    "{}: {}".format, options.map(lambda name: name.lstrip("-")), st.one_of(yaml_words, numbers)
)


@few
@given(
    st.one_of(
        st.binary(max_size=60),
        yaml_words.map(str.encode),
        st.lists(yaml_options, max_size=4).map(lambda lines: "\n".join(lines).encode()),
    )
)
@example(b"[" * 2_000)
@example(b"show: &a [*a]")
@example(b"? [a]\n: b")
def test_any_config_file(content: bytes) -> None:
    Path("file").write_bytes(content)
    argv = ["--import-config", "file", "cat"]
    check(lambda: parse_run_options(argv, {"PATH": os.defpath}), UsageError)
