"""Profiles of training steps: which op ran when on each worker, as shares, text, trace, picture."""

__all__: list[str] = []  # internal
