"""Local SGD with Hugging Face Trainer: `LocalSGDTrainer` takes the place of `Trainer`.

    torchrun --nproc-per-node 2 examples/with_trainer.py
    torchrun --nproc-per-node 2 examples/with_trainer.py     # goes on from where it was cut off

Needs `pip install 'localsgd[transformers]' scikit-learn`. The changed lines are marked with `# <-`.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from localsgd.integrations.transformers import LocalSGDTrainer  # <-


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data(dtype: torch.dtype) -> tuple[list[dict], list[dict]]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=dtype), torch.tensor(digits.target)
    samples = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    return samples[:1440], samples[1440:]


def accuracy(prediction: tuple) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(1) == labels).mean())}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--double", action="store_true", help="in float64")
    parser.add_argument("--out", type=Path, default=Path("runs/with-trainer"))
    options = parser.parse_args(arguments)

    settings = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=24,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=0.005,
        max_grad_norm=0.0,
        save_steps=5,  # In the middle of a round, most of the time.
        logging_steps=20,  # Gathers the loss, so that a multiple of local_steps is best.
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    torch.manual_seed(0)
    dtype = torch.float64 if options.double else torch.float32
    train, test = data(dtype)
    trainer = LocalSGDTrainer(  # <-
        Net().to(dtype),
        settings,
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
        local_sgd={"local_steps": 4},  # <-
    )
    begun = get_last_checkpoint(options.out) if options.out.exists() else None
    trainer.train(resume_from_checkpoint=begun)
    trainer.save_model(options.out)


if __name__ == "__main__":
    main()
