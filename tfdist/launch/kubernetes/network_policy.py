"""Who may connect to the run's pods: TensorFlow's gRPC asks nobody who they are."""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.pods import metadata, run_labels


def network_policy(options: JobOptions) -> dict[str, Any]:
    """Returns the manifest: only pods of this run may connect to pods of this run."""
    pods = {"matchLabels": run_labels(options)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(options),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}],
        },
    }
