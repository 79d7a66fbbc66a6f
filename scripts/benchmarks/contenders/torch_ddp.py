"""PyTorch's own way: DistributedDataParallel, over gloo.

python torch_ddp.py WORK WORKER_INDEX, with MASTER_ADDR, MASTER_PORT, WORLD_SIZE
"""

from __future__ import annotations

import sys

import turns


def main() -> None:
    name, worker_index = sys.argv[1], int(sys.argv[2])
    turns.pin_to_own_core(worker_index)
    import torch
    import torch_models as models
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=worker_index)
    # Gradients as views: its documentation has it against copies between them and the buckets.
    model = DistributedDataParallel(models.make_model(name), gradient_as_bucket_view=True)
    optimizer = models.make_optimizer(name, model)
    find_loss = nn.CrossEntropyLoss()
    features, labels = models.make_batch(name, worker_index)

    my_turns = turns.Turns(worker_index)
    while my_turns.goes_on():
        optimizer.zero_grad()
        find_loss(model(features), labels).backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
