"""Lightning: a step is one attempted `optimizer.step` of the wrapped optimizer.

    trainer = Trainer(strategy=LocalSGDStrategy(local_steps=8), devices=2, num_nodes=4, ...)

takes the place of `Trainer(strategy="ddp", ...)`.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.integrations import worker_files
from localsgd.integrations.extras import extra
from localsgd.optimizer import LocalSGD, compact

with extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins import MixedPrecision, Precision
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn

__all__ = ["LocalSGDStrategy"]


class LocalSGDStrategy(DDPStrategy):
    """Local SGD: processes, samplers and devices as with `DDPStrategy`, but no wrapped model.

    `configure_optimizers` stays as it is, with one optimizer. Validation takes the averaged model.
    A checkpoint has it too, and beside it (`NAME.ckpt.localsgd`) a file of each worker, from which
    `fit(ckpt_path=...)` goes on to the same bits, also in the middle of a round. Training ends with
    a sync.

    Args:
        settings: of `LocalSGD`, such as `local_steps=8`. `start` is `"broadcast"` if not given, as
            DDP hands out the model of the first process, too.
        cluster_environment, checkpoint_io, precision_plugin, process_group_backend, start_method:
            as in `DDPStrategy`.

    Attributes:
        local_sgd: the `LocalSGD` around the optimizer; `None` before training.

    Raises:
        UserError: where something of this can't work with local steps.
    """

    def __init__(
        self,
        *,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        start_method: Any = "popen",
        **settings: Any,
    ) -> None:
        inspect.signature(LocalSGD).bind(None, None, **settings)  # Raises here, not at the start.
        super().__init__(
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            start_method=start_method,
        )
        self.local_sgd: LocalSGD | None = None
        self._settings: dict[str, Any] = {"start": "broadcast", **settings}
        self._finished = False
        self._shown: ExitStack | None = None
        self._loaded: worker_files.State = {}

    # Set-up.

    def configure_ddp(self) -> None:
        """The model stays bare."""

    def setup_optimizers(self, trainer: Trainer) -> None:
        super().setup_optimizers(trainer)
        if self._layer_sync is not None:
            raise UserError(
                "sync_batchnorm=True communicates in every forward pass; leave it out: LocalSGD "
                "averages the statistics of batch norm when it shows the averaged model"
            )
        if len(self.optimizers) != 1:
            raise UserError(
                f"configure_optimizers gave {len(self.optimizers)} optimizers, and "
                "LocalSGDStrategy takes one; put all parameters into groups of one optimizer, or "
                "write the loop yourself, with a LocalSGD around each"
            )
        [inner] = self.optimizers
        if isinstance(inner, LocalSGD):
            raise UserError(
                "configure_optimizers gave a LocalSGD; return the plain optimizer, and give the "
                "settings of LocalSGD to LocalSGDStrategy"
            )
        assert self.lightning_module is not None
        self.local_sgd = LocalSGD(inner, self.lightning_module, **self._settings)
        self.optimizers = [self.local_sgd]
        self._finished = False
        if not any(isinstance(callback, _AverageFirst) for callback in trainer.callbacks):
            trainer.callbacks.insert(0, _AverageFirst())
        loop = trainer.fit_loop.epoch_loop
        loop._broadcast_sigterm_tensor = _AfterSyncs(self.local_sgd, loop)

    def on_train_start(self) -> None:
        if self._loaded:  # Not before: the Trainer drops gradients on its way here.
            assert self.lightning_module is not None
            worker_files.put_gradients(self.lightning_module, self._loaded)
            self._loaded = {}

    def on_train_end(self) -> None:
        assert self.local_sgd is not None
        self.local_sgd.finish()
        self._finished = True  # From here on the model is the average, whoever asks.

    # Evaluation.

    def on_validation_start(self) -> None:
        self._shown = ExitStack()
        self._shown.enter_context(self._averaged())

    def on_validation_end(self) -> None:
        if self._shown is not None:
            self._shown.close()
        self._shown = None

    @contextmanager
    def _averaged(self) -> Generator[None]:
        if self.local_sgd is None or self._finished:
            yield
            return
        with self.local_sgd.averaged_model():
            yield

    @contextmanager
    def _own(self) -> Generator[None]:
        """This worker's own model, also where the average is shown (checkpoints at validation)."""
        shown = self._shown is not None
        self.on_validation_end()
        yield
        if shown:
            self.on_validation_start()

    # Checkpoints.

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """`True`: workers start alike, and load their own weights later."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        with self._averaged():
            return compact(super().lightning_module_state_dict())

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        if self.local_sgd is not None and "optimizer_states" in checkpoint:
            module = self.lightning_module
            assert module is not None
            with self._own():
                worker_files.write(
                    _folder(filepath),
                    module,
                    self.local_sgd,
                    scaler=getattr(self.precision_plugin, "scaler", None),
                )
                checkpoint["optimizer_states"] = [self.local_sgd.state_dict()]
            self.barrier()  # The checkpoint is there only when the files of all workers are.
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            own = worker_files.read(_folder(checkpoint_path))
            self._loaded = own
            checkpoint["state_dict"] = own["model"]
            checkpoint["optimizer_states"] = [own["optimizer"]]
            if own["scaler"] is not None:
                checkpoint[type(self.precision_plugin).__qualname__] = own["scaler"]
        return checkpoint

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero:
            shutil.rmtree(_folder(filepath), ignore_errors=True)


class _AverageFirst(Callback):
    """Averages gradients, where H = 1, before they are clipped or looked at."""

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        if not isinstance(optimizer, LocalSGD):
            return
        precision = trainer.precision_plugin
        if isinstance(precision, MixedPrecision) and precision.scaler is not None:
            precision.scaler.unscale_(optimizer)
            # It refuses to clip for optimizers that unscale by themselves; by now it is done.
            precision.clip_gradients = Precision.clip_gradients.__get__(precision)
        optimizer.average_gradients()


class _AfterSyncs:
    """Asks whether the first process is told to end: once after a sync, not before every batch.

    The Trainer does so by a broadcast for which every process waits.
    """

    def __init__(self, optimizer: LocalSGD, loop: Any) -> None:
        self._optimizer = optimizer
        self._ask = type(loop)._broadcast_sigterm_tensor.__get__(loop)
        self._asked = -1

    def __call__(self) -> None:
        steps = self._optimizer.steps
        if self._optimizer.at_sync and steps != self._asked:
            self._asked = steps
            self._ask()


def _folder(checkpoint: Any) -> Path:
    """Of the workers' files of a checkpoint, which may be a link to another."""
    return Path(f"{os.path.realpath(checkpoint)}.localsgd")
