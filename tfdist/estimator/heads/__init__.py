"""Heads, which turn a model's logits into loss, metrics, predictions and export outputs."""

__all__: list[str] = []  # internal
