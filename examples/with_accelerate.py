"""Local SGD with accelerate: `prepare` of localsgd takes the place of `accelerator.prepare`.

    torchrun --nproc-per-node 2 examples/with_accelerate.py
    torchrun --nproc-per-node 2 examples/with_accelerate.py     # goes on from where it was cut off

Needs `pip install 'localsgd[accelerate]' scikit-learn`. The changed lines are marked with `# <-`.
"""

from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from localsgd.integrations.accelerate import prepare  # <-


def main(out=Path("runs/with-accelerate"), epochs=4, accumulate=1, dtype=torch.float32):
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=dtype)
    y = torch.tensor(digits.target)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=20, gamma=0.5)
    loader = DataLoader(TensorDataset(x[:1440], y[:1440]), batch_size=24, shuffle=True)
    model, optimizer, loader, scheduler = prepare(  # <-
        accelerator, model, inner, loader, scheduler, local_steps=4
    )
    begun = 0  # micro-batches
    if (out / "begun.pt").exists():
        begun = torch.load(out / "begun.pt")
        accelerator.load_state(out / f"step-{begun}")
    for epoch in range(begun // len(loader), epochs):
        loader.set_epoch(epoch)
        for images, labels in accelerator.skip_first_batches(loader, begun % len(loader)):
            begun += 1
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(images), labels))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if begun % 15 == 0:  # In the middle of a round, most of the time.
                accelerator.save_state(out / f"step-{begun}")
                accelerator.wait_for_everyone()
                accelerator.save(begun, out / "begun.pt")
        with optimizer.optimizer.averaged_model(), torch.no_grad():  # <-
            right = model(x[1440:]).argmax(1) == y[1440:]
            accelerator.print(f"epoch {epoch + 1}: test accuracy {right.double().mean():.3f}")
    optimizer.optimizer.finish()  # <- the last sync
    accelerator.save_model(model, out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
