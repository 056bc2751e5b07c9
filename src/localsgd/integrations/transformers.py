"""Hugging Face Trainer: a step is one attempted `optimizer.step` of the wrapped optimizer.

    trainer = LocalSGDTrainer(model, arguments, ..., local_sgd={"local_steps": 8})

takes the place of `Trainer(model, arguments, ...)`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.integrations import worker_files
from localsgd.integrations.accelerate import check_accelerator, save_apart
from localsgd.integrations.extras import extra
from localsgd.optimizer import LocalSGD

with extra("transformers"):
    from transformers import Trainer, TrainingArguments

__all__ = ["LocalSGDTrainer"]

FOLDER = "localsgd"
"""In a checkpoint's folder, the folder with a file for each worker."""


class LocalSGDTrainer(Trainer):
    """A `Trainer` by local SGD; others too: `class Mine(LocalSGDTrainer, Seq2SeqTrainer)`.

    The model isn't wrapped in `DistributedDataParallel`. Evaluation, prediction and `save_model`
    take the averaged model. A checkpoint has it too, and a file of each worker, from which
    `train(resume_from_checkpoint=...)` goes on to the same bits, also in the middle of a round.
    `average_tokens_across_devices` and `dispatch_batches`, which communicate at every step, are
    switched off. Training ends with a sync.

    Args:
        local_sgd: settings of `LocalSGD`, such as `{"local_steps": 8}`. `start` is `"broadcast"` if
            not given, as the Trainer hands out the model of the first process, too.
        args, kwargs: of the Trainer.

    Attributes:
        local_sgd: the `LocalSGD` around the Trainer's optimizer; `None` before training.

    Raises:
        UserError: where something of this can't work with local steps.
    """

    local_sgd: LocalSGD | None = None

    def __init__(self, *args: Any, local_sgd: Mapping[str, Any], **kwargs: Any) -> None:
        self._settings: dict[str, Any] = {"start": "broadcast", **local_sgd}
        self._finished = False
        self._scaler: Any = None
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        set_arguments(self.args)
        super().create_accelerator_and_postprocess()
        check_accelerator(self.accelerator)
        save_apart(self.accelerator)
        prepare = self.accelerator.prepare_model
        # Without DDP around the model, which the Trainer has put on its device already.
        self.accelerator.prepare_model = lambda model, **_: prepare(
            model, device_placement=False, evaluation_mode=True
        )

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        given = super().create_optimizer(model)
        inner = getattr(given, "optimizer", given)  # A second train() finds it prepared.
        if inner is not self.local_sgd:
            if isinstance(inner, LocalSGD):
                raise UserError(
                    "the Trainer was given a LocalSGD; give it the plain optimizer, or none, and "
                    'the settings of LocalSGD as local_sgd={"local_steps": ...}'
                )
            self.local_sgd = self.optimizer = LocalSGD(given, self.model, **self._settings)
        self._finished = False
        return self.optimizer

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Clips by the norm of what the step takes: averaged gradients, where H = 1."""
        assert self.local_sgd is not None
        self.accelerator.unscale_gradients()
        self.local_sgd.average_gradients()
        return nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        assert self.local_sgd is not None
        self.local_sgd.finish()
        self._finished = True  # From here on the model is the average, whoever asks.
        return super()._finalize_training(*args, **kwargs)

    @contextmanager
    def _averaged(self) -> Generator[None]:
        if self.local_sgd is None or self._finished:
            yield
            return
        with self.local_sgd.averaged_model():
            yield

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self._averaged():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._averaged():
            return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        with self._averaged():
            super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        assert self.local_sgd is not None
        folder = Path(output_dir) / FOLDER
        worker_files.write(folder, self.model, self.local_sgd, scaler=self.accelerator.scaler)
        self.accelerator.wait_for_everyone()  # Rank 0 removes older checkpoints right after this.

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        assert self.local_sgd is not None
        own = worker_files.read(Path(checkpoint) / FOLDER)
        self.model.load_state_dict(own["model"])
        with worker_files.loading(self.local_sgd, own["optimizer"]):
            super()._load_optimizer_and_scheduler(checkpoint)
        self._scaler = own["scaler"]

    def _load_scaler(self, checkpoint: str | None) -> None:
        super()._load_scaler(checkpoint)
        if self._scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(self._scaler)


def set_arguments(arguments: TrainingArguments) -> None:
    """Switches off what communicates at every step, and refuses what can't be switched off."""
    if arguments.n_gpu > 1:
        raise UserError(
            f"one process sees {arguments.n_gpu} GPUs, over which the Trainer would split every "
            "batch; start one process for each by torchrun --nproc-per-node"
        )
    if arguments.include_num_input_tokens_seen not in (False, "no"):
        raise UserError(
            "include_num_input_tokens_seen gathers a count of tokens for every batch; leave it "
            'out, or set it to "no"'
        )
    if arguments.auto_find_batch_size:
        raise UserError(
            "auto_find_batch_size starts again on the ranks that run out of memory, and on no "
            "others; set per_device_train_batch_size instead"
        )
    # Would gather at every step, and scale each worker's gradients by its share of all tokens.
    arguments.average_tokens_across_devices = False
