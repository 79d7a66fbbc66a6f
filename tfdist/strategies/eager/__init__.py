"""The dialect of TensorFlow 2: variables that can be read at once, tf.functions, Keras' `fit`."""

__all__: list[str] = []  # internal
