"""All manifests of a run, and their text."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tfdist.launch.kubernetes.indexed_job import indexed_job
from tfdist.launch.kubernetes.mpi_job import mpi_job
from tfdist.launch.kubernetes.network_policy import network_policy
from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.tf_job import tf_job
from tfdist.launch.kubernetes.train_job import train_job

_MAKERS = {"job": indexed_job, "tfjob": tf_job, "mpijob": mpi_job, "trainjob": train_job}


def manifests(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests in the order in which they have to be submitted."""
    guard = [network_policy(options)] if options.has_network_policy else []
    return guard + _MAKERS[options.kind](options)


def to_yaml(documents: list[dict[str, Any]]) -> str:
    """Returns the documents as one YAML stream that reads the same everywhere."""
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
    # Quoted unless it is plainly a word: to kubectl's parser 1e-3 and 0o17 are numbers, and y is
    # true, which PyYAML would leave without quotes.
    quote = '"' if "'" in text else "'"
    is_word = re.fullmatch(r"[A-Za-z/][A-Za-z0-9._/-]+", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_word else quote)


_Dumper.add_representer(str, _represent_text)
