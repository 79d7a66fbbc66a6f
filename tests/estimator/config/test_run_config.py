"""RunConfig: settings, their rules, and who this task is."""

import copy
import functools
import inspect
import json
import socket
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.estimator import DeviceConfig, RunConfig
from tfdist.estimator.config.run_config import TaskType
from tfdist.estimator.graph.sessions import with_defaults
from tfdist.strategies import MultiWorkerStrategy


@pytest.fixture
def tf_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets TF_CONFIG to an object, or to a text as it is."""

    def set_tf_config(value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv("TF_CONFIG", text)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return set_tf_config


pytestmark = pytest.mark.usefixtures("tf_config")


# Defaults and read-only properties.


def test_the_defaults_are_read_back() -> None:
    parameters = inspect.signature(RunConfig).parameters.values()  # test_names_table.py has them.
    defaults = {parameter.name: parameter.default for parameter in parameters}
    decided = {"save_checkpoints_steps": None, "save_checkpoints_secs": 600}
    expected = {**defaults, **decided, "device": DeviceConfig(), "save_snapshot_steps": 0}
    assert {name: getattr(RunConfig(), name) for name in defaults} == expected


@pytest.mark.parametrize(
    "name", ["model_dir", "save_summary_steps", "is_chief", "task_type", "master", "cluster_spec"]
)
def test_properties_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(RunConfig(), name, 1)


def test_an_unknown_attribute_says_its_name() -> None:
    with pytest.raises(AttributeError, match="'RunConfig' object has no attribute 'save_steps'"):
        _ = RunConfig().save_steps


# Checkpoint frequency.


@pytest.mark.parametrize(
    ("given", "steps", "secs"),
    [
        ({}, None, 600),
        ({"save_checkpoints_steps": 4}, 4, None),
        ({"save_checkpoints_secs": 5}, None, 5),
        ({"save_checkpoints_steps": 4, "save_checkpoints_secs": None}, 4, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, None, None),
        ({"save_checkpoints_steps": None}, None, None),
    ],
)
def test_one_frequency_excludes_the_other(given: Any, steps: int | None, secs: int | None) -> None:
    config = RunConfig(**given)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (steps, secs)


def test_two_frequencies_are_refused() -> None:
    for make in (RunConfig, RunConfig().replace):
        with pytest.raises(ValueError, match=r"_secs` cannot be both set.* 1 and 2"):
            make(save_checkpoints_steps=1, save_checkpoints_secs=2)


# replace.


def test_replace_gives_a_copy() -> None:
    config = RunConfig(save_summary_steps=7)
    changed = config.replace(tf_random_seed=3)
    assert (changed.tf_random_seed, changed.save_summary_steps) == (3, 7)
    assert config.tf_random_seed is None


def test_replacing_one_frequency_clears_the_other_but_none_leaves_it() -> None:
    by_steps = RunConfig().replace(save_checkpoints_steps=4)
    assert (by_steps.save_checkpoints_steps, by_steps.save_checkpoints_secs) == (4, None)
    by_secs = by_steps.replace(save_checkpoints_secs=9)
    assert (by_secs.save_checkpoints_steps, by_secs.save_checkpoints_secs) == (None, 9)
    assert RunConfig().replace(save_checkpoints_steps=None).save_checkpoints_secs == 600
    assert RunConfig().replace(save_checkpoints_secs=None).save_checkpoints_secs is None


@pytest.mark.parametrize("name", ["is_chief", "task_id", "save_steps"])
def test_replace_takes_the_constructors_names_only(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Replacing {name} is not supported.*'model_dir'"):
        RunConfig().replace(**{name: 1})


def test_replace_checks_as_the_constructor_does() -> None:
    message = "save_summary_steps should be >= 0 and a whole number, got -1"
    for name, value, words in (("save_summary_steps", -1, message), ("model_dir", "", "non-empty")):
        with pytest.raises(ValueError, match=words):
            RunConfig().replace(**{name: value})


def test_graph_optimizers_that_the_user_has_set_stay_as_they_are() -> None:
    own = v1.ConfigProto()
    own.graph_options.rewrite_options.layout_optimizer = 1  # ON
    own.graph_options.rewrite_options.memory_optimization = 4
    assert with_defaults(own) == own


def test_copies_do_not_share_the_session_config() -> None:
    config = RunConfig(session_config=v1.ConfigProto(log_device_placement=True))
    for other in (config.replace(tf_random_seed=1), copy.deepcopy(config)):
        assert other.session_config == config.session_config
        assert other.session_config is not config.session_config


# Refusals.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_dir", ""),
        ("save_summary_steps", -1),
        ("save_checkpoints_steps", -1),
        ("save_checkpoints_secs", -1),
        ("keep_checkpoint_max", -1),
        ("keep_checkpoint_every_n_hours", 0),
        ("log_step_count_steps", 0),
        ("session_creation_timeout_secs", 0),
        ("session_config", {"allow_soft_placement": True}),
        ("tf_random_seed", 1.5),
        ("device_fn", "/cpu:0"),
        ("device_fn", lambda operation: "/cpu:0"),
        ("device_fn", lambda op, other: "/cpu:0"),
        ("protocol", "mpi"),
        ("experimental_max_worker_delay_secs", 1.5),
        ("experimental_distribute", object()),
        ("train_distribute", "grpc"),
        ("eval_distribute", "grpc"),
        ("device", "/device:CPU:1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} (should|must) be .*"):
        RunConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("save_summary_steps", 0),
        ("keep_checkpoint_max", 0),
        ("keep_checkpoint_max", None),
        ("save_summary_steps", None),
        ("log_step_count_steps", None),
        ("device_fn", lambda op: "/cpu:0"),
        ("protocol", "grpc"),
        ("tf_random_seed", 0),
    ],
)
def test_an_allowed_value_is_kept(name: str, value: Any) -> None:
    assert getattr(RunConfig(**{name: value}), name) == value


def test_a_strategy_that_cannot_train_here_is_refused() -> None:
    with pytest.raises(ValueError, match="MultiWorkerStrategy or HorovodStrategy"):
        RunConfig(train_distribute=tf.distribute.experimental.CentralStorageStrategy())


# DeviceConfig.


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "4"])
@pytest.mark.parametrize("name", ["iterations_per_loop", "gradient_accumulation", "num_replicas"])
def test_a_number_of_a_device_config_is_an_integer_from_1(name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        DeviceConfig(**{name: number})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulation_reduction": "max"}, 'must be "mean" or "sum", got \'max\''),
        ({"precision": "half"}, "precision must be one of float32, mixed_float16"),
        ({"precision": "bfloat16", "stochastic_rounding": 1}, "must be True, False or None, got 1"),
        ({"stochastic_rounding": True}, "all weights are float32. Leave it out, or set precision"),
        (
            {"stochastic_rounding": False, "precision": "mixed_float16"},
            "all weights are float32. Leave it out, or set precision",
        ),
    ],
)
def test_other_settings_of_a_device_config_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeviceConfig(**settings)


def test_a_device_config_is_a_value() -> None:
    assert DeviceConfig(iterations_per_loop=4) == DeviceConfig(iterations_per_loop=4)
    with pytest.raises(AttributeError):
        DeviceConfig().device = "/device:CPU:0"  # type: ignore[misc]


# TF_CONFIG.

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"], "evaluator": ["e:5"]}


def _role(config: RunConfig) -> tuple[Any, ...]:
    return (
        config.task_type,
        config.task_id,
        config.is_chief,
        config.master,
        config.evaluation_master,
        config.num_worker_replicas,
        config.num_ps_replicas,
        config.global_id_in_cluster,
    )


def test_without_tf_config_a_task_is_alone(tf_config: Any) -> None:
    tf_config(" ")  # A blank one is none.
    for config in (RunConfig(), RunConfig().replace(tf_random_seed=1)):
        assert _role(config) == ("worker", 0, True, "", "", 1, 0, 0)
        assert config.cluster_spec.as_dict() == {}
        assert config.service is None


ALONE_EVALUATOR = ("evaluator", 0, False, "", "", 0, 0, None)
MASTER = {"master": ["a:1"], "worker": ["b:2"]}
WORKERS = {"worker": ["a:1", "b:2"]}
WITH_OTHER_JOB = {"chief": ["host0:0"], "worker": ["host1:0"] * 2, "fun": ["f:1"], "ps": ["p:1"]}
WITHOUT_EVALUATOR = {job: addresses for job, addresses in CLUSTER.items() if job != "evaluator"}


@pytest.mark.parametrize(
    ("cluster", "role"),
    [
        (CLUSTER, ("chief", 0, True, "grpc://a:1", "", 3, 1, 0)),
        # A listed evaluator counts: e comes before w.
        (CLUSTER, ("worker", 0, False, "grpc://b:2", "", 3, 1, 2)),
        (CLUSTER, ("worker", 1, False, "grpc://c:3", "", 3, 1, 3)),
        (CLUSTER, ("ps", 0, False, "grpc://d:4", "", 3, 1, 4)),
        (CLUSTER, ALONE_EVALUATOR),
        (CLUSTER, ("evaluator", 7, False, "", "", 0, 0, None)),  # It may have any index.
        (WITHOUT_EVALUATOR, ALONE_EVALUATOR),
        ({}, ALONE_EVALUATOR),
        (MASTER, ("master", 0, True, "grpc://a:1", "", 2, 0, 0)),
        (MASTER, ("worker", 0, False, "grpc://b:2", "", 2, 0, 1)),
        (WORKERS, ("worker", 0, True, "grpc://a:1", "", 2, 0, 0)),
        (WORKERS, ("worker", 1, False, "grpc://b:2", "", 2, 0, 1)),
        ({"worker": ["a:1"]}, ("worker", 0, True, "", "", 1, 0, 0)),
        # Any address and job name will do: no port is opened here.
        (WITH_OTHER_JOB, ("chief", 0, True, "grpc://host0:0", "", 3, 1, 0)),
        (WITH_OTHER_JOB, ("fun", 0, False, "grpc://f:1", "", 3, 1, 1)),
        (WITH_OTHER_JOB, ("worker", 0, False, "grpc://host1:0", "", 3, 1, 2)),
        (WITH_OTHER_JOB, ("ps", 0, False, "grpc://p:1", "", 3, 1, 4)),
    ],
)
def test_a_task_of_a_cluster_knows_its_role(
    tf_config: Any, cluster: dict[str, list[str]], role: tuple[Any, ...]
) -> None:
    task_type, index, *_ = role
    tf_config({"cluster": cluster, "task": {"type": task_type, "index": index}})
    config = RunConfig()
    assert _role(config) == role
    expected = {} if task_type == "evaluator" else cluster
    assert config.cluster_spec.as_dict() == expected


def test_tf_config_brings_masters_and_service(tf_config: Any) -> None:
    masters = {"session_master": "grpc://train:1", "eval_session_master": "grpc://eval:1"}
    tf_config({**masters, "service": {"key": "value"}})
    config = RunConfig()
    assert (config.master, config.evaluation_master) == ("grpc://train:1", "grpc://eval:1")
    assert config.service == {"key": "value"}
    tf_config({"service": ["value"]})
    with pytest.raises(TypeError, match=r'"service" .* must be a dict. Given.*\[\'value\'\]'):
        RunConfig()


def test_the_model_dir_of_tf_config_is_taken(tf_config: Any) -> None:
    tf_config({"model_dir": "/models/1"})
    assert RunConfig().model_dir == "/models/1"
    assert RunConfig(model_dir="/models/1").model_dir == "/models/1"
    message = r"must have the same value as the model_dir in TF_CONFIG. It is '/models/2', .*/1'"
    with pytest.raises(ValueError, match=message):
        RunConfig(model_dir="/models/2")
    tf_config({"model_dir": ""})
    with pytest.raises(ValueError, match="model_dir in TF_CONFIG should be non-empty"):
        RunConfig()


@pytest.mark.parametrize(
    ("task", "rule"),
    [
        ({"type": "worker", "index": 1}, "index must be 0. It is 1"),
        ({"type": "ps", "index": 0}, "type must be WORKER. It is 'ps'"),
        ({"type": "chief"}, "type must be WORKER. It is 'chief'"),
    ],
)
@pytest.mark.parametrize("cluster", [{}, {"cluster": {}}])
def test_a_task_without_a_cluster_is_refused(
    tf_config: Any, task: Any, rule: str, cluster: Any
) -> None:
    tf_config({**cluster, "task": task})
    with pytest.raises(ClusterError, match=f'"cluster" is not set in TF_CONFIG, task {rule}'):
        RunConfig()


PS_AND_WORKERS = {"ps": ["a:1"], "worker": ["b:1"]}


@pytest.mark.parametrize(
    ("cluster", "task", "phrase"),
    [
        (PS_AND_WORKERS, ("worker", 0), 'it must have one "chief" node'),
        (
            {"chief": ["a:1", "b:2"]},
            ("chief", 0),
            "TF_CONFIG cluster lists 2 chiefs .a:1 and b:2., and one is allowed",
        ),
        ({"master": ["b:2"]}, ("evaluator", 0), "task_type `evaluator` is not supported"),
        (CLUSTER, None, 'TF_CONFIG task has no "type"'),
        (CLUSTER, ("worker", 2), "task index 2 is out of range: the cluster lists 2 workers"),
        (CLUSTER, ("painter", 0), 'task type "painter" is not in the cluster, which lists chief, '),
    ],
)
def test_a_cluster_that_contradicts_itself_is_refused(
    tf_config: Any, cluster: Any, task: Any, phrase: str
) -> None:
    # tests/cluster/test_tf_config.py has what is wrong in TF_CONFIG alone.
    given = {} if task is None else {"type": task[0], "index": task[1]}
    tf_config({"cluster": cluster, "task": given})
    with pytest.raises(ClusterError, match=phrase):
        RunConfig()


@pytest.mark.parametrize("given", [None, v1.ConfigProto(allow_soft_placement=True)])
def test_a_sum_of_large_tensors_is_one_op_so_that_its_order_does_not_depend_on_timing(
    given: v1.ConfigProto | None,
) -> None:
    with tf.Graph().as_default():
        is_run = v1.placeholder(tf.bool, [])
        size = [16, 1 << 20]  # TensorFlow takes a CPU's memory for 256 MB.

        def added() -> tf.Tensor:
            return tf.reduce_sum(tf.add_n([tf.random.uniform(size) for _ in range(4)]))

        value = tf.cond(is_run, added, lambda: tf.constant(0.0))
        metadata, options = v1.RunMetadata(), v1.RunOptions(output_partition_graphs=True)
        with v1.Session(config=with_defaults(given)) as session:
            session.run(value, {is_run: False}, options, metadata)
    types = [node.op for graph in metadata.partition_graphs for node in graph.node]
    assert types.count("AddN") == 1
    assert "AssignAdd" not in types


@pytest.mark.parametrize(
    ("task_type", "index", "filters"),
    [
        ("chief", 0, ["/job:ps", "/job:chief"]),
        ("worker", 1, ["/job:ps", "/job:worker/task:1"]),
        ("ps", 0, ["/job:ps", "/job:worker", "/job:chief", "/job:master"]),
        ("evaluator", 0, None),
        ("fun", 0, None),
    ],
)
def test_a_session_in_a_cluster_sees_its_own_task_and_the_ps(
    tf_config: Any, task_type: str, index: int, filters: list[str] | None
) -> None:
    cluster = {**CLUSTER, "fun": ["f:1"]}
    tf_config({"cluster": cluster, "task": {"type": task_type, "index": index}})
    session_config = RunConfig().session_config
    if filters is None:
        assert session_config is None
        return
    of_tf_estimator = v1.ConfigProto(allow_soft_placement=True, device_filters=filters)
    of_tf_estimator.graph_options.rewrite_options.meta_optimizer_iterations = 1  # ONE
    assert session_config == of_tf_estimator
    own = v1.ConfigProto(log_device_placement=True)
    assert RunConfig(session_config=own).session_config == own


def test_tf_config_and_its_model_dir_are_logged(tf_config: Any, logged: list[str]) -> None:
    tf_config({"model_dir": "/models/1"})
    RunConfig()
    assert "TF_CONFIG environment variable: {'model_dir': '/models/1'}" in logged
    assert "Using model_dir in TF_CONFIG: /models/1" in logged


# Strategies.


@pytest.mark.parametrize("chief", ["chief", "master", "worker"])
def test_the_cluster_the_strategy_and_the_config_agree_on_the_chief(
    tf_config: Any, chief: str
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        ports = [server.getsockname()[1] for server in (first, second)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    jobs = (
        {"worker": addresses}
        if chief == "worker"
        else {"worker": addresses[1:], chief: addresses[:1]}
    )
    for number, task in enumerate([(chief, 0), ("worker", int(chief == "worker"))]):
        tf_config({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})
        strategy = MultiWorkerStrategy()
        assert strategy.cluster is not None and strategy.task is not None
        answers = [
            strategy.cluster.is_chief(strategy.task),
            strategy.extended.should_checkpoint,
            strategy.extended.should_save_summary,
            RunConfig(train_distribute=strategy).is_chief,
            RunConfig().is_chief,
        ]
        assert answers == [number == 0] * len(answers)


class Distribute:
    """The attributes of `tf.distribute`'s DistributeConfig."""

    def __init__(self, train: Any = None, evaluate: Any = None, remote: Any = None) -> None:
        self.train_distribute, self.eval_distribute = train, evaluate
        self.remote_cluster = remote


def test_strategies_may_come_in_experimental_distribute() -> None:
    train, evaluate = MultiWorkerStrategy(), MultiWorkerStrategy()
    given = {"experimental_distribute": Distribute(train, evaluate)}
    config = RunConfig(**given)
    for one in (config, config.replace(tf_random_seed=1), RunConfig().replace(**given)):
        assert (one.train_distribute, one.eval_distribute) == (train, evaluate)


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_a_strategy_given_twice_is_refused(name: str) -> None:
    strategy = MultiWorkerStrategy()
    both = Distribute(strategy, strategy)
    with pytest.raises(ValueError, match=f"Either `{name}` or `experimental_distribute.{name}`"):
        RunConfig(experimental_distribute=both, **{name: strategy})


def test_a_remote_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match=r"remote_cluster is not supported.*TF_CONFIG"):
        RunConfig(experimental_distribute=Distribute(remote={"worker": ["a:1"]}))


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute"])
def test_parameter_servers_are_refused_with_the_alternative(name: str) -> None:
    strategy = type("ParameterServerStrategyV2", (), {})()
    for make in (RunConfig, RunConfig().replace):
        with pytest.raises(ValueError, match=r"no parameter servers here.*MultiWorkerStrategy"):
            make(**{name: strategy})


_WITH_SERVERS = {"worker": ["localhost:1"], "ps": ["localhost:2"]}


def test_workers_replace_parameter_servers_if_asked(
    tf_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf_config({"cluster": _WITH_SERVERS, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TFDIST_PARAMETER_SERVERS", "replace")
    for given in (None, v1.distribute.experimental.ParameterServerStrategy()):
        config = RunConfig(train_distribute=given, eval_distribute=given)
        assert isinstance(config.train_distribute, MultiWorkerStrategy)
        assert config.eval_distribute is None
        assert (config.is_chief, config.num_ps_replicas, config.num_worker_replicas) == (True, 0, 1)
        assert config.cluster_spec.jobs == ["worker"]
        assert config.replaced_servers == ("localhost:2",)
    monkeypatch.delenv("TFDIST_PARAMETER_SERVERS")
    assert RunConfig(parameter_servers="replace").replaced_servers == ("localhost:2",)
    with pytest.raises(ClusterError, match=r'must have one "chief".*parameter_servers="replace"'):
        RunConfig()
    cluster = {**_WITH_SERVERS, "chief": ["localhost:3"]}
    tf_config({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    assert RunConfig().num_ps_replicas == 1
    assert RunConfig().replace(parameter_servers="replace").num_ps_replicas == 0


def test_a_ps_task_and_an_evaluator_get_no_strategy_in_place_of_parameter_servers(
    tf_config: Any,
) -> None:
    for task_type in ("ps", "evaluator"):
        tf_config({"cluster": _WITH_SERVERS, "task": {"type": task_type, "index": 0}})
        config = RunConfig(parameter_servers="replace")
        assert (config.train_distribute, config.task_type) == (None, task_type)


def test_another_word_for_parameter_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='parameter_servers should be "replace" or None, got 3'):
        RunConfig(parameter_servers=3)  # type: ignore[arg-type]
    monkeypatch.setenv("TFDIST_PARAMETER_SERVERS", "yes")
    with pytest.raises(ClusterError, match='TFDIST_PARAMETER_SERVERS is "yes": only "replace"'):
        RunConfig()


# What programs do with it.


def test_a_subclass_with_a_constructor_and_properties_of_its_own_can_be_replaced() -> None:
    class Mine(RunConfig):
        def __init__(self, items: list[int]) -> None:
            super().__init__(save_checkpoints_steps=3)
            self.items = items

        @property
        def is_chief(self) -> bool:
            return False

    config = Mine([1])
    changed = config.replace(model_dir="a")
    changed.items.append(2)
    assert (config.items, changed.items, changed.is_chief) == ([1], [1, 2], False)
    assert (changed.model_dir, changed.save_checkpoints_steps) == ("a", 3)


@pytest.mark.parametrize("name", [*inspect.signature(RunConfig).parameters, "cluster_spec"])
def test_a_subclass_may_replace_any_setting_by_a_property_or_a_value(name: str) -> None:
    own = getattr(RunConfig(), name)
    for replacement in (property(lambda config: own), functools.cached_property(lambda _: own)):
        replaced = type("Mine", (RunConfig,), {name: replacement})()
        assert getattr(replaced, name) is own
        assert getattr(replaced.replace(tf_random_seed=1), name) is own
    assert getattr(type("Mine", (RunConfig,), {name: own})(), name) is own


def test_a_subclasss_property_reads_the_setting_that_it_replaces() -> None:
    class Mixin:
        keep_checkpoint_max = 2

    class Mine(Mixin, RunConfig):
        @property
        def save_checkpoints_steps(self) -> int:
            return 7

        @property
        def save_summary_steps(self) -> int:
            return 2 * (super().save_summary_steps or 0)

        @property
        def task_id(self) -> int:
            return super().task_id + 4

    config = Mine(save_summary_steps=5)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (7, None)
    assert (config.keep_checkpoint_max, config.save_summary_steps, config.task_id) == (2, 10, 4)
    assert config.replace(save_summary_steps=6).save_summary_steps == 12
    with pytest.raises(AttributeError, match="save_summary_steps"):
        config.save_summary_steps = 1  # type: ignore[misc]


def test_a_subclasss_property_is_checked_as_a_setting_is() -> None:
    wrong = type("Mine", (RunConfig,), {"save_summary_steps": property(lambda config: -1)})
    with pytest.raises(ValueError, match="save_summary_steps should be >= 0"):
        wrong()


def test_the_task_types_are_there_by_name() -> None:
    names = {n: v for n, v in vars(TaskType).items() if n.isupper()}
    expected = {"MASTER", "PS", "WORKER", "CHIEF", "EVALUATOR"}
    assert names == {name: name.lower() for name in expected}


def test_a_program_may_give_a_config_attributes_of_its_own() -> None:
    config = RunConfig()
    config.use_tpu = False
    assert config.replace(tf_random_seed=1).use_tpu is False
