"""The same models in PyTorch: as many weights, in the same layers, with the same optimizers."""

from __future__ import annotations

from typing import Any

import torch
import work as works
from torch import nn
from torch.nn import functional


def make_model(name: str) -> nn.Module:
    """Returns a module from a batch of features to logits [batch, classes].

    Images are [batch, channels, height, width] and lie in memory with their channels last, as
    PyTorch's performance guide has it for convolutions on CPUs.
    """
    return _BUILDERS[name]().to(memory_format=torch.channels_last)


def loss_of(model: nn.Module, features: Any, labels: Any) -> torch.Tensor:
    """Returns the mean loss of a batch; over words, and over sentences, where it has both."""
    logits = model(features)
    if isinstance(logits, dict):
        words = functional.cross_entropy(logits["words"].flatten(0, 1), labels["words"].flatten())
        return words + functional.cross_entropy(logits["sentences"], labels["sentences"])
    return functional.cross_entropy(logits, labels)


def make_batch(name: str, worker_index: int) -> tuple[Any, Any]:
    """Returns one batch of the worker's, in memory; words and labels are int64."""
    features, labels = works.make_batch(works.WORKS[name], worker_index)
    if isinstance(features, dict):
        return _as_int64(features), _as_int64(labels)
    tensor = torch.from_numpy(features)
    if tensor.ndim == 4:  # [batch, height, width, channels]
        tensor = tensor.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return tensor, torch.from_numpy(labels)


def _as_int64(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).long() for name, array in arrays.items()}


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the work's optimizer."""
    # Its documentation calls the fused updates the fastest; they do not take sparse gradients.
    common = {"lr": works.LEARNING_RATE, "fused": name != works.EMBEDDING}
    optimizers: dict[str, Any] = {
        "adam": lambda: torch.optim.Adam(model.parameters(), **common),
        "momentum": lambda: torch.optim.SGD(model.parameters(), momentum=0.9, **common),
        "sgd": lambda: torch.optim.SGD(model.parameters(), **common),
    }
    return optimizers[works.WORKS[name].optimizer]()


def _make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),  # [batch, 32, 26, 26]
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 64),
        nn.ReLU(),
        nn.Linear(64, works.NUM_CLASSES),
    )


def _make_mlp() -> nn.Module:
    (size,) = works.WORKS[works.MLP].feature_shape
    layers: list[nn.Module] = []
    for next_size in works.MLP_LAYERS:
        layers += [nn.Linear(size, next_size), nn.ReLU()]
        size = next_size
    return nn.Sequential(*layers, nn.Linear(size, works.NUM_CLASSES))


class MeanOfWords(nn.Module):  # type: ignore[misc]
    """The mean over a sequence: [batch, words, size] -> [batch, size]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


def _make_embedding() -> nn.Module:
    size = works.EMBEDDING_SIZE
    return nn.Sequential(
        nn.Embedding(works.WORKS[works.EMBEDDING].vocabulary, size, sparse=True),
        MeanOfWords(),
        nn.Linear(size, size),
        nn.ReLU(),
        nn.Linear(size, works.NUM_CLASSES),
    )


def _convolution(inputs: int, filters: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01),  # Keras's: 1e-3, 0.99 of the old mean
    )


class _Block(nn.Module):  # type: ignore[misc]
    """Two convolutions, and the input added to what comes out: pixels left out, zeros added."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, filters, stride)
        self.second = _convolution(filters, filters, 1)
        self.stride, self.added = stride, filters - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.second(torch.relu(self.first(x)))
        if self.stride > 1:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return torch.relu(inner + x)  # [batch, filters, height, width]


def _make_resnet() -> nn.Module:
    filters = works.RESNET_GROUPS[0]
    channels = works.WORKS[works.RESNET_20].feature_shape[-1]
    layers: list[nn.Module] = [_convolution(channels, filters, 1), nn.ReLU()]
    for group, next_filters in enumerate(works.RESNET_GROUPS):
        for block in range(works.RESNET_BLOCKS):
            stride = 2 if group > 0 and block == 0 else 1
            layers.append(_Block(filters, next_filters, stride))
            filters = next_filters
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(filters, works.NUM_CLASSES)]
    return nn.Sequential(*layers)


def encoder_layer() -> nn.Module:
    """Returns a layer of BERT's encoder: [batch, sequence, hidden] -> the same."""
    return nn.TransformerEncoderLayer(
        works.BERT_HIDDEN,
        works.BERT_HEADS,
        works.BERT_INNER,
        dropout=0.0,
        activation=gelu,
        layer_norm_eps=works.BERT_EPSILON,
        batch_first=True,
    )


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Returns the approximation that BERT has."""
    return functional.gelu(x, approximate="tanh")


class _Bert(nn.Module):  # type: ignore[misc]
    """BERT mini from words to the logits of masked words and of the next sentence."""

    def __init__(self) -> None:
        super().__init__()
        work, hidden = works.WORKS[works.BERT_MINI], works.BERT_HIDDEN
        self.words = nn.Embedding(work.vocabulary, hidden)
        self.segments = nn.Embedding(2, hidden)
        self.positions = nn.Parameter(torch.empty(works.BERT_POSITIONS, hidden))
        # BERT's own. With PyTorch's, 50 times as large, the softmax over the words has denormal
        # numbers, and the products with them take several times as long.
        for table in (self.words.weight, self.segments.weight, self.positions):
            nn.init.normal_(table, std=0.02)
        self.norm = nn.LayerNorm(hidden, eps=works.BERT_EPSILON)
        self.layers = nn.ModuleList(encoder_layer() for _ in range(works.BERT_LAYERS))
        self.pooler = nn.Linear(hidden, hidden)
        self.transform = nn.Linear(hidden, hidden)
        self.transform_norm = nn.LayerNorm(hidden, eps=works.BERT_EPSILON)
        self.decoder = nn.Linear(hidden, work.vocabulary)
        self.decoder.weight = self.words.weight
        self.sentences = nn.Linear(hidden, 2)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        words = features["words"]  # [batch, sequence]
        x = self.words(words) + self.segments(features["segments"])
        x = self.norm(x + self.positions[: words.shape[1]])  # [batch, sequence, hidden]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=features["mask"] == 0)
        places = features["positions"].unsqueeze(-1).expand(-1, -1, x.shape[-1])
        masked = self.transform_norm(gelu(self.transform(x.gather(1, places))))
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return {"words": self.decoder(masked), "sentences": self.sentences(pooled)}


_BUILDERS = {
    works.CNN: _make_cnn,
    works.MLP: _make_mlp,
    works.EMBEDDING: _make_embedding,
    works.RESNET_20: _make_resnet,
    works.BERT_MINI: _Bert,
}
