"""A training loop of one's own, with local SGD in a few lines, which are marked with `# <-`.

    torchrun --nproc-per-node 4 examples/own_loop.py
    torchrun --nproc-per-node 4 examples/own_loop.py --epochs 20     # goes on from where it is

scikit-learn's digits, a small net; a save after every epoch, from which the same command goes on
after a crash, with the same bits.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/own-loop"))
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    options.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)  # the same start for all
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=options.local_steps)  # <-

    train, test = data()
    sampler = DistributedSampler(train, drop_last=True)  # as many batches for every rank
    loader = DataLoader(train, batch_size=16, sampler=sampler, drop_last=True)

    begun, folder = 0, options.out / "save"
    if localsgd.saved(folder):
        begun = localsgd.load(folder, model, optimizer)["epoch"]  # <-

    for epoch in range(begun + 1, options.epochs + 1):
        sampler.set_epoch(epoch)  # else every epoch has the first one's order
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with optimizer.averaged_model():  # <- the mean of all workers' models
            if rank == 0:
                print(f"epoch {epoch}: test accuracy {accuracy(model, test):.3f}")
        localsgd.save(folder, model, optimizer, epoch=epoch)  # <- all ranks, whole or not at all

    optimizer.finish()  # <- the last sync
    if rank == 0:
        torch.save(model.state_dict(), options.out / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
