"""ResNet as a list of segments: names, shapes and numbers of parameters, without TensorFlow.

    He et al., "Deep Residual Learning for Image Recognition", 2016

    form       sizes                   first segment             groups of blocks
    CIFAR      8, 14, 20, 32, 44, 56   conv 3x3                  b1 b2 b3, filters 16 32 64
    ImageNet   18, 34, 50              conv 7x7 / 2, pool / 2    b1 b2 b3 b4, filters 64 128 256 512

A size of the CIFAR form is 6n + 2: n blocks of two convolutions in each of three groups. Sizes 18
and 34 have such blocks, too, and size 50 has bottlenecks of three convolutions. A pipeline can be
cut behind each segment but the last one; `b2/0/relu` is the end of the first block of group b2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_CIFAR_BLOCKS = {8: 1, 14: 2, 20: 3, 32: 5, 44: 7, 56: 9}
_IMAGENET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
_BOTTLENECKS = (50,)
EXPANSION = 4  # The last convolution of a bottleneck has so many times the filters of the others.

SIZES = (*_CIFAR_BLOCKS, *_IMAGENET_BLOCKS)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution without bias, and the norm behind it."""

    name: str
    kernel: int  # Height and width of the kernel.
    channels: int  # Channels of the input.
    filters: int  # Channels of the output.
    stride: int = 1  # Of height and width.

    @property
    def num_parameters(self) -> int:
        """The kernel, and the scale and offset of the norm."""
        return self.kernel**2 * self.channels * self.filters + 2 * self.filters


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the network that stays on one device."""

    name: str  # The point behind it, where a pipeline can be cut.
    kind: Literal["stem", "block", "head"]
    # Those on the way from input to output; none in the head.
    convolutions: Sequence[Convolution] = ()
    # The convolution beside them, where the ImageNet form changes the shape. The CIFAR form leaves
    # pixels out and adds channels of zeros.
    shortcut: Convolution | None = None
    pools: bool = False  # Whether a maximum over 3x3, stride 2, follows.
    channels: int = 0  # Channels of the input of the head.
    classes: int = 0  # Outputs of the head.

    @property
    def num_parameters(self) -> int:
        """The number of trainable values."""
        if self.kind == "head":
            return (self.channels + 1) * self.classes
        beside = [] if self.shortcut is None else [self.shortcut]
        return sum(one.num_parameters for one in [*self.convolutions, *beside])


def make_segments(size: int, image_channels: int, classes: int) -> list[Segment]:
    """Returns the segments of a network, from the images to the logits."""
    is_small = size in _CIFAR_BLOCKS
    filters = 16 if is_small else 64
    stem = Convolution(
        name="conv",
        kernel=3 if is_small else 7,
        channels=image_channels,
        filters=filters,
        stride=1 if is_small else 2,
    )
    segments = [Segment(name="init/relu", kind="stem", convolutions=[stem], pools=not is_small)]
    channels = filters
    numbers = [_CIFAR_BLOCKS[size]] * 3 if is_small else _IMAGENET_BLOCKS[size]
    for group, number in enumerate(numbers, start=1):
        for index in range(number):
            stride = 2 if group > 1 and index == 0 else 1
            name = f"b{group}/{index}/relu"
            block = _make_block(name, channels, filters, stride, size)
            segments.append(block)
            channels = block.convolutions[-1].filters
        filters *= 2
    return [*segments, Segment(name="head", kind="head", channels=channels, classes=classes)]


def _make_block(name: str, channels: int, filters: int, stride: int, size: int) -> Segment:
    is_bottleneck = size in _BOTTLENECKS
    kernels = [1, 3, 1] if is_bottleneck else [3, 3]
    widths = [filters, filters, EXPANSION * filters] if is_bottleneck else [filters, filters]
    strided = 1 if is_bottleneck else 0  # The convolution that has the stride: a 3x3 one.
    convolutions = [
        Convolution(
            name=f"conv{number + 1}",
            kernel=kernel,
            channels=before,
            filters=width,
            stride=stride if number == strided else 1,
        )
        for number, (kernel, before, width) in enumerate(
            zip(kernels, [channels, *widths], widths, strict=False)
        )
    ]
    shortcut = None
    if size in _IMAGENET_BLOCKS and channels != widths[-1]:
        shortcut = Convolution(
            name="shortcut", kernel=1, channels=channels, filters=widths[-1], stride=stride
        )
    return Segment(name=name, kind="block", convolutions=convolutions, shortcut=shortcut)


def count_parameters(segments: Sequence[Segment]) -> int:
    """Returns the number of trainable values of a network."""
    return sum(segment.num_parameters for segment in segments)


def cut(segments: Sequence[Segment], splits: Sequence[str]) -> list[list[Segment]]:
    """Returns the segments of each stage; a stage ends with each segment that `splits` names."""
    stages: list[list[Segment]] = [[]]
    for segment in segments:
        stages[-1].append(segment)
        if segment.name in splits:
            stages.append([])
    return stages


def split_evenly(segments: Sequence[Segment], num_stages: int) -> list[str]:
    """Returns the cuts that give each stage about as many convolutions."""
    weights = [len(segment.convolutions) for segment in segments]
    total, done, splits = sum(weights), 0, list[str]()
    for segment, weight in zip(segments[:-1], weights, strict=False):
        done += weight
        if len(splits) < num_stages - 1 and done >= total * (len(splits) + 1) / num_stages:
            splits.append(segment.name)
    return splits
