"""Low-rank adapters (LoRA) on frozen weights, with local SGD.

torchrun --nproc-per-node 2 examples/ports/lora.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import localsgd


class Adapted(nn.Module):
    """A frozen layer, and a product of two small matrices that trains (Hu et al. 2021)."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def build():
    """A pretrained model would be loaded here; this one is random."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model[0], model[2] = Adapted(model[0], 4), Adapted(model[2], 4)
    return model


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
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--local-steps", type=int, default=8)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    rank, (x, y) = dist.get_rank(), data()
    model = build()
    adapters = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.AdamW(adapters, lr=options.lr)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=options.local_steps)
    for step in range(options.steps):
        inputs, targets = batch(x, y, rank, step, options.batch_size)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.finish()
    if rank == 0:
        correct = (model(x[1500:]).argmax(dim=1) == y[1500:]).double().mean()
        print(f"test accuracy {100 * correct.item():.1f} %")
    return model, [optimizer]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
