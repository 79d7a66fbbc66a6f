"""Timelines of a pipelined step as text, picture and trace. Does not import TensorFlow."""

__all__: list[str] = []  # internal
