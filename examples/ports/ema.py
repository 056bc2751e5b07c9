"""An exponential moving average of the weights (EMA), evaluated in place of them, with local SGD.

torchrun --nproc-per-node 2 examples/ports/ema.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import localsgd


def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def data():
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.get_default_dtype())
    return x, torch.tensor(digits.target)


def batch(x, y, rank, step, size):
    chosen = torch.Generator().manual_seed(1_000_000 * rank + step)
    index = torch.randint(1500, (size,), generator=chosen)
    return x[index], y[index]


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--decay", type=float, default=0.98)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    rank, (x, y) = dist.get_rank(), data()
    model = build()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(options.decay))
    inner = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=options.local_steps)
    for step in range(options.steps):
        inputs, targets = batch(x, y, rank, step, options.batch_size)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        ema.update_parameters(model)
    optimizer.finish()
    for average in ema.module.parameters():  # their mean is the moving average of the mean
        dist.all_reduce(average.data.div_(dist.get_world_size()))
    if rank == 0:
        correct = (ema(x[1500:]).argmax(dim=1) == y[1500:]).double().mean()
        print(f"test accuracy of the moving average {100 * correct.item():.1f} %")
    return ema.module, [optimizer]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
