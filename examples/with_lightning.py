"""Local SGD with Lightning: `LocalSGDStrategy` takes the place of the strategy "ddp".

    torchrun --nproc-per-node 2 examples/with_lightning.py
    torchrun --nproc-per-node 2 examples/with_lightning.py     # goes on from where it was cut off

Needs `pip install 'localsgd[lightning]' scikit-learn`. The changed lines are marked with `# <-`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

from localsgd.integrations.lightning import LocalSGDStrategy  # <-


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        right = (self.layers(batch[0]).argmax(1) == batch[1]).double().mean()
        self.log("accuracy", right, sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> dict:
        inner = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, step_size=20, gamma=0.5)
        return {"optimizer": inner, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Resumable(DataLoader):
    """Goes on where a checkpoint was written; plain loaders would begin the epoch anew."""

    skip = done = 0

    def __iter__(self) -> Iterator:
        skip, self.skip = self.skip, 0
        for self.done, batch in enumerate(super().__iter__(), 1):
            if self.done > skip:
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done % len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["done"]


def loaders(dtype: torch.dtype) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=dtype)
    whole = list(zip(x, torch.tensor(digits.target), strict=True))
    return Resumable(whole[:1440], batch_size=24, shuffle=True), DataLoader(whole[1440:], 24)


def main(out=Path("runs/with-lightning"), epochs=4, accumulate=1, dtype=torch.float32):
    torch.manual_seed(0)
    trainer = Trainer(
        strategy=LocalSGDStrategy(local_steps=4),  # <-
        accelerator="cpu",
        devices=2,
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        callbacks=[ModelCheckpoint(out, every_n_train_steps=5, save_top_k=-1)],
        logger=False,
    )
    newest = max(out.glob("*step=*.ckpt"), key=os.path.getmtime, default=None)
    trainer.fit(Digits().to(dtype), *loaders(dtype), ckpt_path=newest)
    trainer.save_checkpoint(out / "final.ckpt")


if __name__ == "__main__":
    main()
