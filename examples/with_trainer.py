"""Local SGD with Hugging Face Trainer: `LocalSGDTrainer` takes the place of `Trainer`.

    torchrun --nproc-per-node 2 examples/with_trainer.py
    torchrun --nproc-per-node 2 examples/with_trainer.py     # goes on from where it was cut off

Needs `pip install 'localsgd[transformers]' scikit-learn`. The changed lines are marked with `# <-`.
"""

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


def data(dtype: torch.dtype) -> list[dict]:
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=dtype)
    pairs = zip(x, torch.tensor(digits.target), strict=True)
    return [{"x": image, "labels": label} for image, label in pairs]


def main(out=Path("runs/with-trainer"), epochs=4, accumulate=1, dtype=torch.float32):
    settings = TrainingArguments(
        out,
        num_train_epochs=epochs,
        per_device_train_batch_size=24,
        gradient_accumulation_steps=accumulate,
        learning_rate=0.005,
        max_grad_norm=0.0,
        save_steps=5,  # In the middle of a round, most of the time.
        logging_steps=20,  # Gathers the loss, so that a multiple of local_steps is best.
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    torch.manual_seed(0)
    trainer = LocalSGDTrainer(  # <-
        Net().to(dtype),
        settings,
        train_dataset=data(dtype)[:1440],
        eval_dataset=data(dtype)[1440:],
        compute_metrics=lambda found: {"accuracy": (found[0].argmax(1) == found[1]).mean()},
        local_sgd={"local_steps": 4},  # <-
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out) if out.exists() else None)
    trainer.save_model(out)


if __name__ == "__main__":
    main()
