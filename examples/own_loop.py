"""A training loop of one's own, with local SGD in three lines, which are marked with `# <-`.

    torchrun --nproc-per-node 4 examples/own_loop.py
    torchrun --nproc-per-node 4 examples/own_loop.py --epochs 20     # goes on from where it is

scikit-learn's digits, a small net; checkpoints by rank after every epoch, from which the same
command goes on after a crash, with the same bits.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import localsgd


def data() -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    y = torch.tensor(digits.target)
    return TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    x, y = test.tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def checkpoint(folder: Path, epoch: int, rank: int) -> Path:
    return folder / f"epoch-{epoch}-rank-{rank}.pt"


def save(path: Path, state: dict) -> None:
    """Whole or not at all."""
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def newest(folder: Path, epochs: int, ranks: int) -> int:
    """The last epoch that every rank has saved; 0 where there is none."""
    for epoch in range(epochs, 0, -1):
        if all(checkpoint(folder, epoch, rank).exists() for rank in range(ranks)):
            return epoch
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/own-loop"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    options.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)  # the same start for all
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=options.local_steps)  # <-

    train, test = data()
    sampler = DistributedSampler(train, drop_last=True)  # as many batches for every rank
    loader = DataLoader(train, batch_size=16, sampler=sampler, drop_last=True)

    begun = newest(options.out, options.epochs, ranks)
    if begun:
        saved = torch.load(checkpoint(options.out, begun, rank), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    for epoch in range(begun + 1, options.epochs + 1):
        sampler.set_epoch(epoch)  # else every epoch has the first one's order
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with optimizer.averaged_model():  # <- the mean of all workers' models
            if rank == 0:
                print(f"epoch {epoch}: test accuracy {accuracy(model, test):.3f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save(checkpoint(options.out, epoch, rank), state)
        dist.barrier()  # all have this one, so that the one before may go
        checkpoint(options.out, epoch - 1, rank).unlink(missing_ok=True)

    optimizer.finish()  # <- the last sync
    if rank == 0:
        save(options.out / "model.pt", model.state_dict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
