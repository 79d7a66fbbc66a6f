"""TF_CONFIG is read strictly, and every refusal says what was found, what is allowed, the fix."""

import json
from typing import Any

import pytest

from tfdist.cluster import Cluster, ClusterError, Task, parse_tf_config

TWO_WORKERS = {"worker": ["localhost:3737", "localhost:3738"]}
WORKER_0 = {"type": "worker", "index": 0}


def tf_config(cluster: Any, task: Any = WORKER_0, **others: Any) -> str:
    return json.dumps({"cluster": cluster, "task": task, **others})


def test_two_workers_are_read() -> None:
    cluster, task = parse_tf_config(tf_config(TWO_WORKERS, {"type": "worker", "index": 1}))
    assert task == Task(type="worker", index=1)
    assert cluster.workers == (Task(type="worker", index=0), Task(type="worker", index=1))
    assert cluster.num_workers == 2
    assert cluster.address(task) == "localhost:3738"
    assert cluster.worker_index(task) == 1
    assert not cluster.is_chief(task)
    assert cluster.is_chief(Task(type="worker", index=0))
    assert not cluster.has_evaluator


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_the_chief_comes_before_the_workers_wherever_it_is_listed(chief: str) -> None:
    jobs = {"worker": ["a:1", "b:1"], "ps": ["c:1"], chief: ["d:1"]}
    cluster, task = parse_tf_config(tf_config(jobs, {"type": chief, "index": 0}))
    assert [worker.name for worker in cluster.workers] == [chief, "worker 0", "worker 1"]
    assert cluster.is_chief(task)
    assert cluster.worker_index(task) == 0
    assert cluster.worker_index(Task(type="worker", index=0)) == 1
    assert not cluster.is_chief(Task(type="worker", index=0))


def test_ps_jobs_are_read_and_are_no_workers() -> None:
    jobs = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}
    cluster, task = parse_tf_config(tf_config(jobs, {"type": "ps", "index": 1}))
    assert cluster.jobs["ps"] == ("c:1", "d:1")
    assert cluster.num_workers == 2
    assert cluster.address(task) == "d:1"
    with pytest.raises(ClusterError, match="ps 1 is not a worker of this cluster"):
        cluster.worker_index(task)


@pytest.mark.parametrize("evaluator", [{}, {"evaluator": ["e:1"]}])
def test_the_evaluator_is_no_worker_whether_listed_or_not(evaluator: dict[str, list[str]]) -> None:
    jobs = {"worker": ["a:1", "b:1"], **evaluator}
    cluster, task = parse_tf_config(tf_config(jobs, {"type": "evaluator", "index": 0}))
    assert cluster.num_workers == 2
    assert cluster.has_evaluator == bool(evaluator)
    assert not cluster.is_chief(task)
    with pytest.raises(ClusterError, match="evaluator 0 is not a worker"):
        cluster.worker_index(task)
    if not evaluator:
        with pytest.raises(ClusterError, match="no address for evaluator 0"):
            cluster.address(task)


@pytest.mark.parametrize(
    "jobs",
    [
        {"worker": {"1": "localhost:3738", "0": "localhost:3737"}},
        {**TWO_WORKERS, "ps": [], "chief": []},
    ],
)
def test_other_forms_of_the_same_cluster_are_accepted(jobs: dict[str, Any]) -> None:
    cluster, _ = parse_tf_config(tf_config(jobs))
    assert cluster == Cluster(jobs={"worker": ("localhost:3737", "localhost:3738")})


def test_an_index_in_quotes_is_accepted_and_other_keys_are_left_alone() -> None:
    text = tf_config(TWO_WORKERS, {"type": "worker", "index": "1"}, environment="cloud")
    assert parse_tf_config(text)[1] == Task(type="worker", index=1)


@pytest.mark.parametrize(
    "addresses",
    [
        ["[fe80::1]:3737", "[fe80::2]:3737"],
        ["[::1]:3737", "127.0.0.1:3738", "localhost:3739"],
        ["train-worker-0.ns.svc.cluster.local:2222", "train_worker_1:2222", "10.0.0.2:65535"],
    ],
)
def test_usual_addresses_are_accepted(addresses: list[str]) -> None:
    cluster, _ = parse_tf_config(tf_config({"worker": addresses}))
    assert cluster.jobs["worker"] == tuple(addresses)


REFUSALS: list[tuple[str, list[str]]] = [
    ("{'cluster': {}}", ["not JSON", "line 1, column 2", "cluster", "JSON takes double quotes"]),
    ('{"cluster": {"worker": ["a:1",]}}', ["not JSON", "column", "TF_CONFIG='{"]),
    ("[" * 100_000, ["TF_CONFIG", "nested"]),
    ("[1]", ["JSON object", "[1]"]),
    ("{}", ['no "cluster"', '"task"']),
    (json.dumps({"task": WORKER_0}), ['no "cluster"', '{"cluster": {"worker"']),
    (
        json.dumps({"cluster": TWO_WORKERS}),
        ['no "task"', '"task": {"type": "worker", "index": 0}'],
    ),
    ('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {}}', ['"worker" twice']),
    (tf_config(["a:1"]), ["cluster must be an object", '["a:1"]']),
    (tf_config({}), ["no chief and no worker"]),
    (tf_config({"worker": []}), ["no chief and no worker", "Add"]),
    (tf_config({"ps": ["a:1"]}), ["no chief and no worker", "only ps"]),
    (tf_config({"worker": "localhost:3737"}), ["cluster.worker must be a list", "localhost:3737"]),
    (tf_config({"worker": [3737]}), ["cluster.worker must be a list", "[3737]"]),
    (tf_config({"worker": {"0": "a:1", "2": "b:1"}}), ["without gaps", '"2"', "0 and 1"]),
    (tf_config({"workers": ["a:1"]}), ["unknown job", '"workers"', 'Did you mean "worker"?']),
    (tf_config({"worker": ["a:1"], "xyz": ["b:1"]}), ['"xyz"', "chief, master, worker, ps and"]),
    (
        tf_config({"worker": ["localhost"]}),
        ["cluster.worker", '"localhost": it has no port', 'Write "host:port"'],
    ),
    (tf_config({"worker": ["[::1]"]}), ["no port"]),
    (tf_config({"worker": ["localhost:"]}), ["not a port", "1 to 65535"]),
    (tf_config({"worker": ["localhost:65536"]}), ['"65536" is not a port']),
    (tf_config({"worker": [":3737"]}), ["no host"]),
    (tf_config({"worker": [" a:3737"]}), ['" a" is not a host']),
    (tf_config({"worker": ["-a:1"]}), ['"-a" is not a host', "Use a name of letters"]),
    (tf_config({"worker": ["a\nb:1"]}), [r'"a\nb" is not a host']),
    (tf_config({"worker": ["a..b:3737"]}), ['"a..b" is not a host']),
    (tf_config({"worker": ["::1:3737"]}), ["brackets", "[::1]"]),
    (tf_config({"worker": ["[gpu]:3737"]}), ["[gpu] is not an IPv6 address"]),
    (tf_config({"worker": ["grpc://a:3737"]}), ["protocol", "host:port"]),
    (tf_config({"worker": ["a:1", "a:1"]}), ["a:1 twice", "worker 0 and worker 1"]),
    (tf_config({"worker": ["a:1"], "ps": ["A:1"]}), ["twice", "worker 0 and ps 0"]),
    (
        tf_config({"worker": ["localhost:1", "127.0.0.1:1"]}),
        ["127.0.0.1:1 twice, as worker 0 and worker 1", "Give each task its own address"],
    ),
    (
        tf_config({"chief": ["a:1", "b:1"]}),
        ["2 chiefs (a:1 and b:1)", "one is allowed", "Keep one"],
    ),
    (tf_config({"chief": ["a:1"], "master": ["b:1"]}), ["2 chiefs"]),
    (tf_config({"worker": ["localhost:1", "gpu2:1"]}), ["mixes localhost:1", "with gpu2:1"]),
    (tf_config({"chief": ["10.0.0.1:1"], "worker": ["127.0.0.1:1"]}), ["mixes 127.0.0.1:1"]),
    (tf_config(TWO_WORKERS, "worker"), ["task must be an object", '"worker"']),
    (tf_config(TWO_WORKERS, {"index": 0}), ['task has no "type"']),
    (tf_config(TWO_WORKERS, {"type": "worker"}), ['task has no "index"']),
    (
        tf_config(TWO_WORKERS, {"type": "workers", "index": 0}),
        ['unknown task type "workers"', "allowed are chief", 'Did you mean "worker"?'],
    ),
    (tf_config(TWO_WORKERS, {"type": "Chief", "index": 0}), ['Did you mean "chief"?']),
    (tf_config(TWO_WORKERS, {"type": None, "index": 0}), ['has no "type": {"type": null']),
    (
        tf_config(TWO_WORKERS, {"type": "chief", "index": 0}),
        ['"chief" is not in the cluster', "lists worker", "add cluster.chief"],
    ),
    (
        tf_config(TWO_WORKERS, {"type": "worker", "index": 2}),
        [
            "TF_CONFIG task index 2 is out of range: the cluster lists 2 workers (0 and 1). ",
            ". Set task.index to 0 or 1, or add an address to cluster.worker.",
        ],
    ),
    (
        tf_config({"chief": ["a:1"]}, {"type": "chief", "index": 1}),
        ["out of range", "1 chief (0). Set task.index to 0."],
    ),
    (tf_config(TWO_WORKERS, {"type": "evaluator", "index": 1}), ["out of range", "index to 0"]),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": -1}), ["integer from 0", "-1"]),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": "-1"}), ["integer from 0", '"-1"']),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": True}), ["integer from 0", "true"]),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": 1.0}), ["integer from 0", "1.0"]),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": None}), ['has no "index"', "null"]),
    (tf_config(TWO_WORKERS, {"type": "worker", "index": 10**30}), ["out of range"]),
]


@pytest.mark.parametrize(("text", "fragments"), REFUSALS)
def test_a_wrong_tf_config_is_refused_in_two_lines(text: str, fragments: list[str]) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_tf_config(text)
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message
    assert message.startswith("TF_CONFIG")
    assert message.count("\n") <= 1
    assert all(len(line) < 300 for line in message.splitlines())
    assert message.endswith((".", "?", "}", "}'"))


def test_a_task_made_by_a_program_is_checked_too() -> None:
    with pytest.raises(ClusterError, match=r'type "wroker": .* Did you mean "worker"'):
        Task(type="wroker", index=0)
    with pytest.raises(ClusterError, match="-1 is negative"):
        Task(type="worker", index=-1)
