"""Checks of `tfdist kubernetes` options that exclude each other, and warnings about others."""

from __future__ import annotations

import re

from tfdist.cluster.environment import FOR_USERS, PREEMPTED
from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.values import LONGEST_LABEL
from tfdist.launch.machine.limits import LONGEST_WORD
from tfdist.launch.options.declaration import options_of
from tfdist.launch.options.secret_names import hide_in_variable
from tfdist.process.text import shown

_SET_BY_MANIFEST = (
    r"TF_CONFIG|TFDIST_\w*|JOB_COMPLETION_INDEX|POD_NAMESPACE|OMPI_MCA_(orte|plm)_\w*"
)
_FOR_PODS = set(FOR_USERS) - {PREEMPTED}  # In pods there is no launcher that looks for its file.

# Options that change only the pods of a runtime, or only one run.
_OF_RUNTIME = (
    *("cpu", "memory", "gpus", "shared_memory", "volumes", "user_id", "host_ipc", "ipc_lock"),
    *("service_account", "image_pull_secrets", "max_restarts"),
)
_OF_RUN = (
    *("namespace", "queue", "env", "secret_env", "num_replicas", "devices_per_replica"),
    *("start_timeout_s", "active_deadline_s", "has_network_policy"),
)
_OF_EVALUATOR = ("evaluator_cpu", "evaluator_memory", "evaluator_gpus")


def check(options: JobOptions) -> None:
    """Raises a UsageError for options that the cluster would refuse or that cannot work there."""
    _check_command(options)
    _check_runtime(options)
    _check_length(options)
    _check_pods(options)
    _check_variables(options)
    _check_volumes(options)


def notices(options: JobOptions) -> list[str]:
    """Returns notices for the user to read before the run, one line each."""
    lines = [
        f"--env {name} looks like a secret, and a manifest is no place for one. "
        f"Put it into a Secret and write --secret-env {name}=SECRET:KEY."
        for name, value in options.env
        if hide_in_variable(name, value) != value
    ]
    has_store = any(re.search(r"\b(gs|s3|hdfs|viewfs|https?)://", word) for word in options.command)
    keeps_files = options.volumes or has_store or options.cluster_runtime
    if options.max_restarts and not keeps_files:
        lines.append(
            "--max-restarts without --volume: a pod's files go with it. Keep checkpoints on a "
            "claim that all pods mount (--volume CLAIM:/FOLDER), or in an object store."
        )
    if options.evaluator and options.kind == "tfjob":
        lines.append(
            "a TFJob ends its evaluator as soon as the chief is done, perhaps before the last "
            "evaluation. The kinds job and trainjob wait for it."
        )
    return lines


def _check_command(options: JobOptions) -> None:
    if options.cluster_runtime and not options.command:
        return
    if not options.command or not options.command[0]:
        raise UsageError(
            "there is no command to run in the containers. Write it last, after --, for example "
            "-- python train.py."
        )
    for word in (*options.command, *(value for _, value in options.env)):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{shown(word)} is not UTF-8, and a manifest can hold nothing else. Rename it."
            ) from None


def _check_runtime(options: JobOptions) -> None:
    """Checks that each option stands where it has an effect: with the runtime or with the run."""
    for field in _OF_EVALUATOR:
        if not options.evaluator and _is_given(options, field):
            name = options_of(JobOptions)[field].long_name
            raise UsageError(f"{name} without --evaluator has no effect. Add --evaluator.")
    if not options.cluster_runtime and options.runtime is None:
        return
    one = "--cluster-runtime" if options.cluster_runtime else "--runtime"
    if options.kind != "trainjob":
        raise UsageError(f"{one} is for --kind trainjob, got {options.kind}. Add --kind trainjob.")
    if options.cluster_runtime and options.runtime is not None:
        raise UsageError(
            "--cluster-runtime writes a runtime and --runtime uses one. Write two commands."
        )
    if options.evaluator:
        raise UsageError(
            f"--evaluator with {one}: its TF_CONFIG names the workers of one run, and the runtime "
            f"is for many. Leave {one} out."
        )
    names: tuple[str, ...] = _OF_RUNTIME
    where = "--cluster-runtime"
    if options.cluster_runtime:
        names, where = _OF_RUN, "--runtime"
    given = [options_of(JobOptions)[name].long_name for name in names if _is_given(options, name)]
    if given:
        raise UsageError(
            f"{given[0]} has no effect with {one}. Give it to the command with {where}."
        )
    if options.cluster_runtime and options.command:
        raise UsageError(
            f"--cluster-runtime runs no command, got {shown(options.command[0])}. "
            "Give it to the command with --runtime."
        )


def _is_given(options: JobOptions, field: str) -> bool:
    if field == "num_replicas":
        return options.replicas_per_instance != 1
    return bool(getattr(options, field) != getattr(JobOptions, field))


def _check_length(options: JobOptions) -> None:
    last = options.num_instances - 1
    # The JobSet of Trainer also needs room for the random suffix of a pod's name.
    suffixes = {
        "job": [f"-{last}"],
        "tfjob": ["-chief-0", f"-worker-{max(0, last - 1)}"],
        "mpijob": ["-launcher", f"-worker-{last}"],
        "trainjob": [f"-node-0-{last}-abcde", "-launcher-0-0-abcde"],
    }[options.kind]
    if options.evaluator:
        suffixes.append("-evaluator-0-0-abcde" if options.kind == "trainjob" else "-evaluator-0")
    longest = max(suffixes, key=len)
    allowed = LONGEST_LABEL - len(longest)
    if len(options.name) > allowed:
        raise UsageError(
            f"--name {shown(options.name)} has {len(options.name)} characters, and with "
            f'"{longest}", which a pod of {options.num_instances} adds, it would have more than '
            f"{LONGEST_LABEL}. Use at most {allowed}."
        )
    # TF_CONFIG lists all workers.
    name, namespace = options.name, options.namespace or "default"
    address = f'"{name}-{last}.{name}.{namespace}.svc:2222", '
    if options.engine == "grpc" and len(address) * options.num_instances > LONGEST_WORD:
        raise UsageError(
            f"--num-instances is {options.num_instances}, and TF_CONFIG with so many addresses is "
            f"longer than the {LONGEST_WORD} bytes that a variable may have. Use at most "
            f"{LONGEST_WORD // len(address)}, or a shorter --name."
        )


def _check_pods(options: JobOptions) -> None:
    needed = options.replicas_per_instance * options.devices_per_replica
    if options.gpus and needed > options.gpus:
        raise UsageError(
            f"--gpus is {options.gpus}, but an instance has {options.replicas_per_instance} "
            f"replicas of {options.devices_per_replica} devices, which is {needed}. "
            f"Use --gpus {needed}, more instances or fewer replicas."
        )
    if options.ipc_lock and options.user_id:
        raise UsageError(
            "--ipc-lock gives its capability to root only, and --run-as-user is "
            f"{options.user_id}. Add --run-as-user 0, or leave --ipc-lock out."
        )
    if options.kind == "trainjob" and options.engine == "horovod" and not options.user_id:
        raise UsageError(
            "--run-as-user 0 cannot use the SSH key that Trainer mounts: others may read it, and "
            "ssh refuses that of root's keys.\nUse another user, or --kind mpijob."
        )


def _check_variables(options: JobOptions) -> None:
    names = [name for name, _ in options.env] + [secret.name for secret in options.secret_env]
    for place, name in enumerate(names):
        if re.fullmatch(_SET_BY_MANIFEST, name) and name not in _FOR_PODS:
            option = "--env" if place < len(options.env) else "--secret-env"
            raise UsageError(
                f"{option} sets {name}, which the manifest or its operator sets itself, or which "
                "has no effect in pods. Leave it out."
            )
        if names.count(name) > 1:
            raise UsageError(f"{name} is set {names.count(name)} times. Set it once.")


def _check_volumes(options: JobOptions) -> None:
    paths = [volume.path for volume in options.volumes]
    for path in paths:
        if path == "/dev/shm" or paths.count(path) > 1:
            other = "--shared-memory is" if path == "/dev/shm" else "another --volume is"
            raise UsageError(
                f"--volume mounts a claim at {path}, where {other} mounted. Use another folder."
            )
