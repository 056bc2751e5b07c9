"""Muon for matrices and AdamW for the rest on one model, with local SGD (torch >= 2.9).

torchrun --nproc-per-node 2 examples/ports/muon.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import localsgd


def build():
    layers = [nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)]
    return nn.Sequential(*layers)


def optimizers(model, lr):
    parameters = list(model.parameters())
    matrices = [p for p in parameters[:-2] if p.dim() == 2]
    rest = [p for p in parameters if all(p is not other for other in matrices)]
    return torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(rest, lr=lr / 4)


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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--local-steps", type=int, default=8)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    rank, (x, y) = dist.get_rank(), data()
    model = build()
    muon, adamw = optimizers(model, options.lr)
    muon = localsgd.LocalSGD(muon, model, local_steps=options.local_steps)
    adamw = localsgd.LocalSGD(adamw, model, local_steps=options.local_steps)
    for step in range(options.steps):
        inputs, targets = batch(x, y, rank, step, options.batch_size)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        muon.step()
        adamw.step()
    muon.finish()
    adamw.finish()
    if rank == 0:
        correct = (model(x[1500:]).argmax(dim=1) == y[1500:]).double().mean()
        print(f"test accuracy {100 * correct.item():.1f} %")
    return model, [muon, adamw]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
