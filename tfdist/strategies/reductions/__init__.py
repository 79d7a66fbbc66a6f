"""Reductions of gradients over workers: engines, message buckets, compression, direct exchange."""

__all__: list[str] = []  # internal
