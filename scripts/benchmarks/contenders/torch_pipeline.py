"""PyTorch's own way: torch.distributed.pipelining over gloo, a process a stage; or one process.

python torch_pipeline.py WORK NUM_MICRO_BATCHES STAGE 1f1b|gpipe|plain, with MASTER_ADDR,
MASTER_PORT and WORLD_SIZE if there are stages
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pipeline_work as works
import turns
import work

NUM_STAGES = 2


def main() -> None:
    name, schedule = sys.argv[1], sys.argv[4]
    micro_batches, stage = int(sys.argv[2]), int(sys.argv[3])
    turns.pin_to_own_core(stage)
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    blocks = make_blocks(name)
    num_parameters = sum(one.numel() for block in blocks for one in block.parameters())
    samples = works.make_samples(name, micro_batches * works.MICRO_BATCH_SIZES[name])
    features, labels = (torch.from_numpy(one) for one in samples)
    if schedule == "plain":
        network = nn.Sequential(*blocks)
        backward = _plain(network, micro_batches, features, labels)
    else:
        distributed.init_process_group("gloo", rank=stage)
        network = nn.Sequential(*(blocks[number] for number in works.cut(name, NUM_STAGES)[stage]))
        backward = _staged(network, stage, schedule, micro_batches, features, labels)
    optimizer = torch.optim.SGD(network.parameters(), works.LEARNING_RATE, fused=True)

    my_turns = turns.Turns(stage, num_parameters)
    while my_turns.goes_on():
        backward()
        optimizer.step()
        optimizer.zero_grad()  # Last: between two steps no contender has gradients.
    if schedule != "plain":
        distributed.destroy_process_group()


def make_blocks(name: str) -> list[Any]:
    """Returns the network's blocks in their order; the last one has the classes too."""
    from torch import nn
    from torch_models import MeanOfWords, encoder_layer

    if name == works.DENSE:
        widths = [works.DENSE_FEATURES, *[works.DENSE_WIDTH] * works.DENSE_BLOCKS]
        blocks = [
            nn.Sequential(nn.Linear(widths[n], widths[n + 1]), nn.ReLU())
            for n in range(works.DENSE_BLOCKS)
        ]
        last = nn.Linear(works.DENSE_WIDTH, works.NUM_CLASSES)
        return [*blocks[:-1], nn.Sequential(blocks[-1], last)]

    blocks = [encoder_layer() for _ in range(work.BERT_LAYERS)]
    last = nn.Linear(work.BERT_HIDDEN, works.NUM_CLASSES)
    return [*blocks[:-1], nn.Sequential(blocks[-1], MeanOfWords(), last)]


def _plain(network: Any, micro_batches: int, features: Any, labels: Any) -> Callable[[], None]:
    """Returns what computes the gradients of one micro-batch after the other, and adds them up."""
    from torch.nn.functional import cross_entropy

    pairs = list(zip(features.chunk(micro_batches), labels.chunk(micro_batches), strict=True))

    def backward() -> None:
        for x, its_labels in pairs:
            (cross_entropy(network(x), its_labels) / micro_batches).backward()

    return backward


def _staged(
    network: Any, stage: int, name: str, micro_batches: int, features: Any, labels: Any
) -> Callable[[], None]:
    """Returns what computes the gradients of this stage, micro-batches as its schedule has them."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    from torch.nn.functional import cross_entropy

    own = PipelineStage(network, stage, NUM_STAGES, torch.device("cpu"))
    schedules = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
    schedule = schedules[name](own, micro_batches, loss_fn=cross_entropy)

    def backward() -> None:
        if stage == 0:
            schedule.step(features)
        else:
            schedule.step(target=labels, losses=[])

    return backward


if __name__ == "__main__":
    main()
