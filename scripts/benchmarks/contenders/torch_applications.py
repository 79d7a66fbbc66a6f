"""The models of examples/cnn and examples/bert in PyTorch, from its layers."""

from __future__ import annotations

import torch
import work as works
from torch import nn
from torch.nn import functional


def make_model(name: str) -> nn.Module:
    """Returns ResNet-20 or BERT mini; see `torch_models.make_model`."""
    return _make_resnet() if name == works.RESNET_20 else _Bert()


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
