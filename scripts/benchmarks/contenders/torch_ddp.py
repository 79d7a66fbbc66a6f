"""PyTorch's own way: DistributedDataParallel, over gloo.

python torch_ddp.py WORK WORKER_INDEX, with MASTER_ADDR, MASTER_PORT, WORLD_SIZE; alone if that is 1
"""

from __future__ import annotations

import os
import sys

import turns


def main() -> None:
    name, worker_index = sys.argv[1], int(sys.argv[2])
    turns.pin_to_own_core(worker_index)
    import torch
    import torch_models as models
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    model = models.make_model(name)
    is_alone = os.environ["WORLD_SIZE"] == "1"
    if not is_alone:
        distributed.init_process_group("gloo", rank=worker_index)
        # Gradients as views: its documentation has it against copies between them and the buckets.
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = models.make_optimizer(name, model)
    features, labels = models.make_batch(name, worker_index)

    my_turns = turns.Turns(worker_index, sum(one.numel() for one in model.parameters()))
    while my_turns.goes_on():
        optimizer.zero_grad()
        models.loss_of(model, features, labels).backward()
        optimizer.step()
    if not is_alone:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
