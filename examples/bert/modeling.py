"""BERT: embedding, encoder layers and heads as functions over `get_variable`.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
2018. Variables have the names of the first public program, so that its checkpoints can be loaded.

A part of the model takes a dict of tensors and returns one, which the next part takes:

    embedding -> encoder_layers(0, 4) -> encoder_layers(4, 8) -> ... -> heads -> losses

On one device they are called one after the other. In a pipeline each is a stage.

    input_ids, input_mask, segment_ids                      int32   [batch, sequence]
    masked_lm_positions, masked_lm_ids, masked_lm_weights           [batch, masks]
    next_sentence_labels                                    int32   [batch]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from arguments import Settings

from tfdist.training import recompute

State = dict[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Bert:
    """The functions of a model."""

    settings: Settings  # The sizes.
    is_training: bool  # Whether there is dropout, and gradients will be computed.

    def embedding(self, features: State) -> State:
        """Adds `hidden` to the features: the sum of three embeddings, normalised."""
        settings = self.settings
        state = {**features, "draws": self._key_of_draws(features)}
        ids = features["input_ids"]  # [batch, sequence]
        with v1.variable_scope("bert/embeddings"):
            words = self._table("word_embeddings", settings.vocab_size)
            segments = self._table("token_type_embeddings", 2)
            positions = self._table("position_embeddings", settings.max_position_embeddings)
            hidden = (
                tf.gather(words, ids)  # [batch, sequence, hidden]
                + tf.gather(segments, features["segment_ids"])
                + positions[: ids.shape[1] or tf.shape(ids)[1]]  # [sequence, hidden]
            )
            hidden = self._layer_norm(hidden)
            hidden = self._dropout(hidden, settings.hidden_dropout_prob, state["draws"], 0)
        return {**state, "hidden": hidden}

    def encoder_layers(self, first: int, end: int) -> Callable[[State], State]:
        """Returns the part of the model with the layers from `first` to before `end`."""

        def layers(state: State) -> State:
            hidden, mask, draws = state["hidden"], state["input_mask"], state["draws"]
            for index in range(first, end):
                layer = self._encoder_layer(index)
                if self.is_training and self.settings.recompute_checkpoint_every_layer:
                    layer = recompute(layer)
                hidden = layer(hidden, mask, draws)
            return {**state, "hidden": hidden}

        return layers

    def _encoder_layer(self, index: int) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
        settings, place = self.settings, 3 * index + 1

        def layer(hidden: tf.Tensor, mask: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
            with v1.variable_scope(f"bert/encoder/layer_{index}"):
                with v1.variable_scope("attention"):
                    context = self._self_attention(hidden, mask, draws, place)
                    with v1.variable_scope("output"):
                        output = self._dense(context, settings.hidden_size, "dense")
                        output = self._dropout(
                            output, settings.hidden_dropout_prob, draws, place + 1
                        )
                        attended = self._layer_norm(hidden + output)  # [batch, sequence, hidden]
                with v1.variable_scope("intermediate"):
                    inner = self._dense(attended, settings.inner_size, "dense")
                    inner = tf.nn.gelu(inner, approximate=True)  # [batch, sequence, inner]
                with v1.variable_scope("output"):
                    output = self._dense(inner, settings.hidden_size, "dense")
                    output = self._dropout(output, settings.hidden_dropout_prob, draws, place + 2)
                    return self._layer_norm(attended + output)

        return layer

    def _self_attention(
        self, hidden: tf.Tensor, mask: tf.Tensor, draws: tf.Tensor, place: int
    ) -> tf.Tensor:
        """Returns the context of each word, [batch, sequence, hidden]."""
        settings = self.settings
        heads = settings.num_attention_heads
        size = settings.hidden_size // heads
        batch, words = tf.shape(hidden)[0], hidden.shape[1] or tf.shape(hidden)[1]

        def projected(name: str) -> tf.Tensor:
            values = self._dense(hidden, settings.hidden_size, name)
            values = tf.reshape(values, [batch, words, heads, size])
            return tf.transpose(values, [0, 2, 1, 3])  # [batch, heads, sequence, size]

        with v1.variable_scope("self"):
            queries, keys, values = projected("query"), projected("key"), projected("value")
        scores = tf.matmul(queries, keys, transpose_b=True) * size**-0.5
        # Padding gets a score so low that its share is 0.
        padding = (1.0 - tf.cast(mask, scores.dtype)) * -10000.0  # [batch, sequence]
        shares = tf.nn.softmax(scores + padding[:, None, None, :])  # [batch, heads, seq., seq.]
        # Two draws for a place: the attention's is that of its layer with the sign changed.
        shares = self._dropout(shares, settings.attention_probs_dropout_prob, draws, -place)
        context = tf.transpose(tf.matmul(shares, values), [0, 2, 1, 3])
        return tf.reshape(context, [batch, words, settings.hidden_size])

    def pooled(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns a summary of each sequence, made of its first word, [batch, hidden]."""
        with v1.variable_scope("bert/pooler"):
            return tf.tanh(self._dense(hidden[:, 0], self.settings.hidden_size, "dense"))

    def heads(self, state: State) -> State:
        """Adds the logits of the masked words and of the next sentence."""
        hidden = state["hidden"]  # [batch, sequence, hidden]
        masked = tf.gather(hidden, state["masked_lm_positions"], batch_dims=1)
        return {
            **state,
            "word_logits": self._word_logits(masked),  # [batch, masks, vocabulary]
            "sentence_logits": self._sentence_logits(self.pooled(hidden)),  # [batch, 2]
        }

    def _word_logits(self, masked: tf.Tensor) -> tf.Tensor:
        settings = self.settings
        with v1.variable_scope("cls/predictions"):
            with v1.variable_scope("transform"):
                masked = self._dense(masked, settings.hidden_size, "dense")
                masked = self._layer_norm(tf.nn.gelu(masked, approximate=True))
            bias = v1.get_variable("output_bias", [settings.vocab_size], initializer=_ZEROS)
        # The decoder is the embedding: in a pipeline, on the same device.
        with v1.variable_scope("bert/embeddings", reuse=True):
            words = self._table("word_embeddings", settings.vocab_size)
        rows = tf.reshape(masked, [-1, settings.hidden_size])  # [batch x masks, hidden]
        logits = tf.matmul(rows, words, transpose_b=True) + bias
        return tf.reshape(logits, [-1, settings.mask_tokens, settings.vocab_size])

    def _sentence_logits(self, pooled: tf.Tensor) -> tf.Tensor:
        with v1.variable_scope("cls/seq_relationship"):
            weights = self._table("output_weights", 2)
            bias = v1.get_variable("output_bias", [2], initializer=_ZEROS)
        return tf.matmul(pooled, weights, transpose_b=True) + bias

    def _table(self, name: str, rows: int) -> tf.Tensor:
        """Returns a weight [rows, hidden]."""
        normal = v1.truncated_normal_initializer(stddev=self.settings.initializer_range)
        return v1.get_variable(name, [rows, self.settings.hidden_size], initializer=normal)

    def _dense(self, inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
        """Returns inputs [..., width] times a kernel plus a bias, [..., units]."""
        width = inputs.shape[-1]
        normal = v1.truncated_normal_initializer(stddev=self.settings.initializer_range)
        with v1.variable_scope(name):
            kernel = v1.get_variable("kernel", [width, units], initializer=normal)
            bias = v1.get_variable("bias", [units], initializer=_ZEROS)
        rows = tf.matmul(tf.reshape(inputs, [-1, width]), kernel) + bias
        return tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], [units]], axis=0))

    def _layer_norm(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalises each word's vector: inputs and result are [..., hidden]."""
        size = [self.settings.hidden_size]
        with v1.variable_scope("LayerNorm"):
            beta = v1.get_variable("beta", size, initializer=_ZEROS)
            gamma = v1.get_variable("gamma", size, initializer=v1.ones_initializer())
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        epsilon = self.settings.layer_norm_eps
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)

    def _key_of_draws(self, features: State) -> tf.Tensor:
        """Returns the seed of a micro-batch's dropout, int64 [].

        It follows from the words and the step: a micro-batch has the same dropout in every layout,
        and after a resume.
        """
        ids = tf.cast(features["input_ids"], tf.int64)  # [batch, sequence]
        places = tf.range(1, tf.size(ids, tf.int64) + 1)  # [batch x sequence]
        key = tf.reduce_sum(tf.reshape(ids, [-1]) * places)
        if not self.is_training:
            return key
        return key * 1_000_003 + v1.train.get_global_step().read_value()

    def _dropout(self, inputs: tf.Tensor, rate: float, draws: tf.Tensor, place: int) -> tf.Tensor:
        """Sets a share `rate` of the values to 0; each place of the model has draws of its own."""
        if not self.is_training or rate == 0.0:
            return inputs
        seed = tf.stack([draws, tf.constant(self.settings.random_seed * 4096 + place, tf.int64)])
        uniform = tf.random.stateless_uniform(tf.shape(inputs), seed, dtype=tf.float32)
        kept = tf.cast(uniform >= rate, inputs.dtype)
        return inputs * kept * (1.0 / (1.0 - rate))


_ZEROS = v1.zeros_initializer()


def pretraining_losses(state: State) -> State:
    """Returns the losses and accuracies of a micro-batch as scalars.

    All are means over the masked words. So that two means over different numbers need not be
    added, the next sentence of a sequence counts as often as the sequence has masked words: one
    weight holds for both, and a step's mean is the same however its sequences are divided into
    micro-batches. With as many masks in each sequence this is the mean over the sequences.

    Returns:
      loss: The sum of `mlm_loss` and `nsp_loss`.
      mlm_loss, nsp_loss: Cross-entropies in nats.
      mlm_acc, nsp_acc: Shares of right predictions, in percent.
      num_masked: The number of masked words: how much the others count.
    """
    weights = tf.cast(state["masked_lm_weights"], tf.float32)  # [batch, masks]
    of_sequence = tf.reduce_sum(weights, axis=1)  # [batch]
    num_masked = tf.reduce_sum(of_sequence)

    def mean(values: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.reduce_sum(values * by), num_masked)

    words, sentences = state["masked_lm_ids"], state["next_sentence_labels"]
    mlm = _cross_entropy(words, state["word_logits"])  # [batch, masks]
    nsp = _cross_entropy(sentences, state["sentence_logits"])  # [batch]
    mlm_loss, nsp_loss = mean(mlm, weights), mean(nsp, of_sequence)
    return {
        "loss": mlm_loss + nsp_loss,
        "mlm_loss": mlm_loss,
        "nsp_loss": nsp_loss,
        "mlm_acc": 100.0 * mean(is_right(words, state["word_logits"]), weights),
        "nsp_acc": 100.0 * mean(is_right(sentences, state["sentence_logits"]), of_sequence),
        "num_masked": num_masked,
    }


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    logits = tf.cast(logits, tf.float32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def is_right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns 1.0 where the largest logit is the label's, else 0.0; the shape of `labels`."""
    predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.cast(tf.equal(predicted, tf.cast(labels, tf.int32)), tf.float32)


def evaluation_metrics(state: State) -> dict[str, Any]:
    """Returns means over a data set: over its masked words, and over its sequences."""
    words, weights = state["masked_lm_ids"], state["masked_lm_weights"]
    sentences = state["next_sentence_labels"]
    mlm = _cross_entropy(words, state["word_logits"])  # [batch, masks]
    mlm_is_right = is_right(words, state["word_logits"])  # [batch, masks]
    nsp = _cross_entropy(sentences, state["sentence_logits"])  # [batch]
    nsp_is_right = is_right(sentences, state["sentence_logits"])  # [batch]
    return {
        "mlm_loss": v1.metrics.mean(mlm, weights),
        "nsp_loss": v1.metrics.mean(nsp),
        "mlm_acc": v1.metrics.mean(100.0 * mlm_is_right, weights),
        "nsp_acc": v1.metrics.mean(100.0 * nsp_is_right),
    }
