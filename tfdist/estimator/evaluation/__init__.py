"""Use of a checkpoint: evaluation, prediction, exporters, and SavedModels."""

__all__: list[str] = []  # internal
