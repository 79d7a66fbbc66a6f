"""The dialect of TensorFlow 2: variables that can be read at once, and steps in tf.functions."""

__all__: list[str] = []  # internal
