"""Training beside evaluation: `train_and_evaluate`, its specs, evaluators and early stopping."""

__all__: list[str] = []  # internal
