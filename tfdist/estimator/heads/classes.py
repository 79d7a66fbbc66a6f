"""Classes have ids from 0, and names: the words of a vocabulary, else the ids as strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Vocabulary = Sequence[str] | None


def ids_of_words(words: Any, vocabulary: Sequence[str]) -> Any:
    """Returns the int64 id of each word, -1 for one that the vocabulary lacks.

    Args:
      words: String tensor, dense or sparse; TypeError for other dtypes.
      vocabulary: Word of each id.
    """
    with tf.init_scope():  # A table made inside a loop of steps would never be initialised.
        keys = tf.constant(list(vocabulary), tf.string)
        ids = tf.range(len(vocabulary), dtype=tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, ids), -1)
    return table.lookup(words)


def names_of_ids(ids: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns the string of each int64 id."""
    if vocabulary:
        return tf.gather(tf.constant(list(vocabulary), tf.string), ids)
    return tf.strings.as_string(ids, name="str_classes")


def all_ids(logits: tf.Tensor, n_classes: Any) -> tf.Tensor:
    """Returns the int32 ids of all classes, once an example: [batch, n_classes]."""
    return tf.tile(tf.range(n_classes)[tf.newaxis], [tf.shape(logits)[0], 1])


def all_names(logits: tf.Tensor, n_classes: Any, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns the names of all classes, once an example: [batch, n_classes]."""
    if vocabulary:
        names = tf.constant(list(vocabulary), tf.string)
    else:
        names = tf.strings.as_string(tf.range(n_classes))
    return tf.tile(names[tf.newaxis], [tf.shape(logits)[0], 1])


def predictions_of_one_class(
    logits: tf.Tensor, n_classes: Any, vocabulary: Vocabulary
) -> dict[str, tf.Tensor]:
    """Predicts one class an example.

    Args:
      logits: [D0, D1, ... DN, n_classes].
      n_classes: int or int tensor.
      vocabulary: Word of each class, or None.

    Returns:
      "probabilities" like logits, "class_ids" (int64) and "classes" [D0, D1, ... DN, 1],
      "all_class_ids" and "all_classes" [D0, n_classes].
    """
    class_ids = tf.expand_dims(tf.argmax(logits, axis=-1, name="class_ids"), -1)
    return {
        "probabilities": tf.nn.softmax(logits, name="probabilities"),
        "class_ids": class_ids,
        "classes": names_of_ids(class_ids, vocabulary),
        "all_class_ids": all_ids(logits, n_classes),
        "all_classes": all_names(logits, n_classes, vocabulary),
    }


def chosen(predictions: dict[str, Any], keys: Sequence[str] | None) -> dict[str, Any]:
    """Keeps the predictions that are asked for; None and nothing ask for all."""
    for key in keys or ():
        if key not in predictions:
            raise ValueError(
                f"Prediction key must be in PredictionKeys, given: {key}. Valid prediction keys "
                f"include {list(predictions)}."
            )
    return {k: v for k, v in predictions.items() if not keys or k in keys}
