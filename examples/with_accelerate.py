"""Local SGD with accelerate: `prepare` of localsgd takes the place of `accelerator.prepare`.

    torchrun --nproc-per-node 2 examples/with_accelerate.py
    torchrun --nproc-per-node 2 examples/with_accelerate.py     # goes on from where it was cut off

Needs `pip install 'localsgd[accelerate]' scikit-learn`. The changed lines are marked with `# <-`.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from localsgd.integrations.accelerate import prepare  # <-


def data(dtype: torch.dtype) -> tuple[TensorDataset, TensorDataset]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=dtype), torch.tensor(digits.target)
    return TensorDataset(x[:1440], y[:1440]), TensorDataset(x[1440:], y[1440:])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--out", type=Path, default=Path("runs/with-accelerate"))
    options = parser.parse_args(arguments)

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=options.accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    torch.manual_seed(0)
    dtype = torch.float64 if options.double else torch.float32
    train, test = data(dtype)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=20, gamma=0.5)
    loader = DataLoader(train, batch_size=24, shuffle=True)
    model, optimizer, loader, scheduler = prepare(  # <-
        accelerator, model, inner, loader, scheduler, local_steps=4
    )

    begun = 0  # micro-batches
    if (options.out / "begun.pt").exists():
        begun = torch.load(options.out / "begun.pt")
        accelerator.load_state(options.out / f"step-{begun}")
    for epoch in range(begun // len(loader), options.epochs):
        loader.set_epoch(epoch)
        left = accelerator.skip_first_batches(loader, begun % len(loader))
        for x, y in left:
            begun += 1
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if begun % 15 == 0:  # In the middle of a round, most of the time.
                accelerator.save_state(options.out / f"step-{begun}")
                accelerator.wait_for_everyone()
                accelerator.save(begun, options.out / "begun.pt")
        with optimizer.optimizer.averaged_model(), torch.no_grad():  # <-
            right = model(test.tensors[0]).argmax(1) == test.tensors[1]
            accelerator.print(f"epoch {epoch + 1}: test accuracy {right.double().mean():.3f}")

    optimizer.optimizer.finish()  # <- the last sync
    accelerator.save_model(model, options.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
