"""The profile of a few steps over all workers: records, shares, files, and the hook."""

__all__: list[str] = []  # internal
