"""PyTorch's MNIST example (a small CNN, Adadelta, StepLR) with DDP, on scikit-learn's digits.

torchrun --nproc-per-node 2 examples/ports/mnist_before.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(torch.flatten(x, 1))))
        return F.log_softmax(self.fc2(x), dim=1)


def data():
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype()).unsqueeze(1)
    y = torch.tensor(digits.target)
    return TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])


def train(model, optimizer, loader, options):
    model.train()
    for index, (x, y) in enumerate(loader):
        if index == options.steps_per_epoch:
            break
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()


def test(model, dataset):
    model.eval()
    x, y = dataset.tensors
    with torch.no_grad():
        correct = (model(x).argmax(dim=1) == y).float().mean().item()
    print(f"test accuracy {100 * correct:.1f} %")


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=-1)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--save", default="mnist")
    options = parser.parse_args(arguments)

    torch.manual_seed(1)
    rank = dist.get_rank()
    train_set, test_set = data()
    sampler = DistributedSampler(train_set, drop_last=True)
    loader = DataLoader(train_set, options.batch_size, sampler=sampler, drop_last=True)

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=options.gamma)
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        train(model, optimizer, loader, options)
        if rank == 0:
            test(model.module, test_set)
        scheduler.step()
        if rank == 0:
            torch.save(model.module.state_dict(), f"{options.save}.pt")
    return model, [optimizer]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
