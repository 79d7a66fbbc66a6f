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
    if name in (works.RESNET_20, works.BERT_MINI):
        import torch_applications

        model = torch_applications.make_model(name)
    else:
        model = _BUILDERS[name]()
    return model.to(memory_format=torch.channels_last)


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


class _MeanOfWords(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)  # [batch, words, size] -> [batch, size]


def _make_embedding() -> nn.Module:
    size = works.EMBEDDING_SIZE
    return nn.Sequential(
        nn.Embedding(works.WORKS[works.EMBEDDING].vocabulary, size, sparse=True),
        _MeanOfWords(),
        nn.Linear(size, size),
        nn.ReLU(),
        nn.Linear(size, works.NUM_CLASSES),
    )


_BUILDERS = {
    works.CNN: _make_cnn,
    works.MLP: _make_mlp,
    works.EMBEDDING: _make_embedding,
}
