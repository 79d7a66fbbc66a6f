"""Use of a checkpoint: evaluation, prediction, exporters, and SavedModels."""
