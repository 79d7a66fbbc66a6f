"""All manifests of a run as YAML text, including the TFJob and the network policy."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tfdist.cluster.environment import START_TIMEOUT
from tfdist.launch.kubernetes.indexed_job import indexed_job
from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.mpi_job import mpi_job
from tfdist.launch.kubernetes.pods import (
    Role,
    manifest,
    pod_container,
    pod_selector,
    pod_template,
    program_variables,
    replica_variables,
    run_policy,
)
from tfdist.launch.kubernetes.train_job import train_job


def _tf_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the TFJob. Worker 0 is its chief: the operator ends the run with the chief."""
    counts = {"Chief": 1, "Worker": options.num_instances - 1, "Evaluator": options.evaluator}
    replicas = {
        role: _replicas(options, role, int(count)) for role, count in counts.items() if count
    }
    spec = {**run_policy(options), "tfReplicaSpecs": replicas}
    return [manifest(options, "kubeflow.org/v1", "TFJob", spec, is_queued=True)]


def _replicas(options: JobOptions, role: str, count: int) -> dict[str, Any]:
    trains = role != "Evaluator"
    start = {"name": START_TIMEOUT, "value": str(options.start_timeout_s)}
    env = [*([start, *replica_variables(options)] if trains else []), *program_variables(options)]
    # The operator finds the container and the port by these names.
    pods: Role = "worker" if trains else "evaluator"
    container = pod_container(options, pods, "tensorflow", env=env, port="tfjob-port")
    return {
        "replicas": count,
        # "ExitCode" starts a pod again if its exit code is 128 or more. The exit codes of workers
        # are chosen for this rule.
        "restartPolicy": "ExitCode" if options.max_restarts else "Never",
        "template": pod_template(options, container, role=pods, restart=None),
    }


def _network_policy(options: JobOptions) -> dict[str, Any]:
    """Returns the manifest that allows only pods of this run to connect to pods of this run."""
    pods = {"matchLabels": pod_selector(options)}
    ingress = [{"from": [{"podSelector": pods}]}]
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return manifest(options, "networking.k8s.io/v1", "NetworkPolicy", spec)


_MAKERS = {"job": indexed_job, "tfjob": _tf_job, "mpijob": mpi_job, "trainjob": train_job}


def manifests(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests in the order in which they must be submitted."""
    is_guarded = options.has_network_policy and not options.cluster_runtime
    documents = [_network_policy(options)] if is_guarded else []
    return documents + _MAKERS[options.kind](options)


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """Returns the documents as one YAML stream that all YAML parsers read in the same way."""
    return yaml.dump_all(
        documents,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        explicit_start=True,
        width=float("inf"),
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Text is quoted unless it is clearly a word. PyYAML would leave 1e-3, 0o17 and y without
    # quotes, but the parser of kubectl reads the first two as numbers and y as true.
    quote = '"' if "'" in text else "'"
    is_word = re.fullmatch(r"[A-Za-z/][A-Za-z0-9._/-]+", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else quote)


_Dumper.add_representer(str, _represent_text)
