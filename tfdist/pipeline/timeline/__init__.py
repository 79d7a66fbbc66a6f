"""Timelines of a pipelined step, as text, picture and trace. No TensorFlow."""

__all__: list[str] = []  # internal
