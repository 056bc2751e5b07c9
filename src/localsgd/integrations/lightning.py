"""Lightning: a step is one attempted `optimizer.step` of the wrapped optimizer.

    trainer = Trainer(strategy=LocalSGDStrategy(local_steps=8), devices=2, num_nodes=4, ...)

takes the place of `Trainer(strategy="ddp", ...)`.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from localsgd.basics.files import is_address
from localsgd.errors import UserError, short
from localsgd.integrations import worker_files
from localsgd.integrations.extras import extra
from localsgd.optimizer import LocalSGD, compact

with extra("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins import MixedPrecision, Precision, TorchCheckpointIO
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = ["LocalSGDStrategy"]

PART = "localsgd"
"""In a checkpoint: the part of its folder that has the workers' files of the same step."""
LATE = 4
"""Parts that are kept where a checkpoint may be written later than it is saved."""


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
        self._told: _ToldToStop | None = None

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
        for callback in trainer.checkpoint_callbacks:
            place = getattr(callback, "dirpath", None)
            if place is not None and not getattr(callback, "save_weights_only", False):
                _folder(place)  # Refused before the work that would be saved there.
        if trainer.world_size > 1:
            self._told = _ToldToStop(self.local_sgd, trainer)
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = self._told.agree

    def on_train_start(self) -> None:
        if self._loaded:  # Not before: the Trainer drops gradients on its way here.
            assert self.lightning_module is not None
            worker_files.put_gradients(self.lightning_module, self._loaded)
            self._loaded = {}

    def on_train_end(self) -> None:
        assert self.local_sgd is not None
        self.local_sgd.finish()
        self._finished = True  # From here on the model is the average, whoever asks.
        if self._told is not None:
            self._told.agree(last=True)

    def teardown(self) -> None:
        if self._told is not None:
            self._told.close()
        self._told = None
        super().teardown()

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
            folder = _folder(filepath)
            batches = module.trainer.fit_loop.epoch_loop.total_batch_idx + 1
            part = f"step-{self.local_sgd.steps}-batch-{batches}{'-end' if self._finished else ''}"
            with self._own():
                worker_files.write(
                    folder / part,
                    module,
                    self.local_sgd,
                    scaler=getattr(self.precision_plugin, "scaler", None),
                )
                checkpoint["optimizer_states"] = [self.local_sgd.state_dict()]
            checkpoint[PART] = part
            self.barrier()  # The checkpoint is there only when the files of all workers are.
            super().save_checkpoint(checkpoint, filepath, storage_options)
            if self.is_global_zero:
                at_once = type(self.checkpoint_io) is TorchCheckpointIO
                _keep_newest(folder, 1 if at_once else LATE)
            return
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            part = str(checkpoint.get(PART, ""))
            if not re.fullmatch(r"(step-[0-9]+(-batch-[0-9]+)?(-end)?)?", part):
                raise UserError(
                    f"{checkpoint_path} is damaged: its workers' files are in {short(part)}; take "
                    "another checkpoint"
                )
            own = worker_files.read(_folder(checkpoint_path) / part)
            self._loaded = own
            checkpoint["state_dict"] = own["model"]
            checkpoint["optimizer_states"] = [own["optimizer"]]
            if own["scaler"] is not None:
                checkpoint[type(self.precision_plugin).__qualname__] = own["scaler"]
        return checkpoint

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        if self.is_global_zero and not is_address(filepath):
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


class _ToldToStop:
    """Ends or requeues all processes at one step, right after a sync, if any was told to.

    Lightning communicates in the handlers of signals, and asks the first process before every
    batch. Between two syncs others are at other steps, or were not told, and would never answer.
    """

    def __init__(self, optimizer: LocalSGD, trainer: Trainer) -> None:
        self._optimizer = optimizer
        self._trainer = trainer
        self._told = {"end": 0, "requeue": 0}  # numbers of signals
        self._asked = -1
        self._over = False
        connector = self._connector = trainer._signal_connector
        self._requeue = type(connector)._slurm_sigusr_handler_fn.__get__(connector)
        connector._sigterm_notifier_fn = self._end_soon  # type: ignore[method-assign]
        connector._slurm_sigusr_handler_fn = self._requeue_soon  # type: ignore[method-assign]

    def _end_soon(self, number: int, _: Any) -> None:
        launcher = self._trainer.strategy.launcher
        if launcher is not None and not self._told["end"]:
            launcher.kill(number)
        self._told["end"] = number
        self._connector.received_sigterm |= self._over  # Nobody will be asked again.

    def _requeue_soon(self, number: int, _: Any) -> None:
        self._told["requeue"] = number

    def agree(self, *, last: bool = False) -> None:
        """Before every batch, and at the end; all processes meet if a sync has just been."""
        steps = self._optimizer.steps
        if not last and (not self._optimizer.at_sync or steps == self._asked):
            return
        self._asked, self._over = steps, last
        told = torch.tensor([*self._told.values()], device=self._trainer.strategy.root_device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        end, requeue = told.tolist()
        if requeue:
            self._told["requeue"] = 0
            self._requeue(requeue, None)
        if end:
            self._connector.received_sigterm = True
            raise SIGTERMException

    def close(self) -> None:
        """Gives Lightning its handlers back, for what is not training."""
        for name in ("_sigterm_notifier_fn", "_slurm_sigusr_handler_fn"):
            vars(self._connector).pop(name, None)


def _folder(checkpoint: Any) -> Path:
    """Of the workers' files of a checkpoint, which may be a link to another."""
    if is_address(checkpoint):
        raise UserError(
            f"{checkpoint} is an address, and the files of workers need a folder that all machines "
            "see; save checkpoints there, and copy them"
        )
    return Path(f"{os.path.realpath(checkpoint)}.localsgd")


def _keep_newest(folder: Path, number: int) -> None:
    """Removes the workers' files of what was saved under the same name before."""
    parts = sorted(folder.glob("step-*"), key=os.path.getmtime)
    for part in parts[:-number]:
        shutil.rmtree(part, ignore_errors=True)
    if number == 1:
        for file in folder.glob("worker-*.pt"):  # of earlier versions, which had no parts
            file.unlink()
