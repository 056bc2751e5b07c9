"""accelerate: a step is one attempted `optimizer.step` of the wrapped optimizer.

    model, optimizer, loader, scheduler = prepare(
        accelerator, model, optimizer, loader, scheduler, local_steps=8
    )

takes the place of `accelerator.prepare(model, optimizer, loader, scheduler)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from localsgd.errors import UserError
from localsgd.integrations import worker_files
from localsgd.integrations.extras import extra
from localsgd.optimizer import LocalSGD, compact
from localsgd.optimizer.ddp import unwrapped

with extra("accelerate"):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderDispatcher
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler

__all__ = ["prepare"]


def prepare(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, *others: Any, **settings: Any
) -> tuple[Any, ...]:
    """Prepares model and optimizer for local SGD, and loaders and schedulers as accelerate does.

    The model isn't wrapped in `DistributedDataParallel`, and a scheduler moves once for a step, not
    once for each process. `accelerator.save_state` writes the averaged model, and a file of each
    worker, from which `load_state` goes on to the same bits; call both on all processes.

    Args:
        accelerator: as the program has it.
        model: as it was built, on any device.
        optimizer: of its parameters.
        others: data loaders and learning-rate schedulers. A shuffling loader costs one broadcast
            at the start of each epoch, unless the accelerator has `use_seedable_sampler`.
        settings: of `LocalSGD`, such as `local_steps=8`. `start` is `"broadcast"` if not given, as
            accelerate hands out the model of the first process, too.

    Returns:
        The model, the optimizer, and the others in their order. `optimizer.optimizer` is the
        `LocalSGD`, with `averaged_model()` and `finish()`.

    Raises:
        UserError: where something of this can't work with local steps.
    """
    check_accelerator(accelerator)
    _check_given(model, optimizer, others)
    module = accelerator.prepare_model(model, evaluation_mode=True)  # Without DDP around it.
    settings.setdefault("start", "broadcast")
    local = LocalSGD(optimizer, module, **settings)
    prepared = accelerator.prepare_optimizer(local, device_placement=False)
    save_apart(accelerator)
    _WorkerState(accelerator, module, local)
    return module, prepared, *(_prepare_other(accelerator, other) for other in others)


def check_accelerator(accelerator: Accelerator) -> None:
    """Refuses what communicates at every step, and switches dispatched batches off."""
    mesh = accelerator.parallelism_config
    if mesh is not None and mesh.dp_replicate_size > 1:
        raise UserError(
            f"ParallelismConfig(dp_replicate_size={mesh.dp_replicate_size}) averages gradients "
            "over the replicas at every step, which is what local steps save; leave it out, as "
            "LocalSGD is what joins the replicas"
        )
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise UserError(
            f"accelerate was set up for {kind}, and LocalSGD takes whole models, one in each "
            "process; set it up for several CPUs or GPUs without a plugin"
        )
    if accelerator.dispatch_batches:
        raise UserError(
            "dispatch_batches=True broadcasts every batch from the first process; set "
            "DataLoaderConfiguration(dispatch_batches=False), so that each process reads its own"
        )
    accelerator.dataloader_config.dispatch_batches = False  # `None` would for iterable data sets.


def save_apart(accelerator: Accelerator) -> None:
    """Gives the tensors of state dicts memory of their own.

    Parameters lie in one row, and accelerate takes tensors of one memory for one tensor: it would
    drop all but the first from a safetensors file.
    """
    whole = accelerator.get_state_dict
    accelerator.get_state_dict = lambda model, unwrap=True: compact(whole(model, unwrap))


def _check_given(model: nn.Module, optimizer: Optimizer, others: Sequence[Any]) -> None:
    if unwrapped(model)[1] is not None:
        raise UserError(
            "the model is in DistributedDataParallel already; give prepare() the bare model, and "
            "leave accelerator.prepare(model) out"
        )
    if isinstance(optimizer, AcceleratedOptimizer | LocalSGD):
        raise UserError(
            f"the optimizer is a {type(optimizer).__name__} already; give prepare() the plain one "
            "(torch.optim.SGD, AdamW, ...), with the settings of LocalSGD as keywords"
        )
    for other in others:
        if isinstance(other, nn.Module | Optimizer):
            raise UserError(
                f"prepare() takes one model and one optimizer, and got a {type(other).__name__} "
                "beside them; call it once for each pair"
            )
        if isinstance(other, AcceleratedScheduler):
            raise UserError(
                "the scheduler has been prepared already, and would move once for each process in "
                "every step; give prepare() the plain scheduler"
            )
        if isinstance(other, DataLoaderDispatcher):
            raise UserError(
                "the loader has been prepared to broadcast every batch from the first process; "
                "give prepare() the plain loader"
            )


def _prepare_other(accelerator: Accelerator, other: Any) -> Any:
    prepared = accelerator.prepare(other)
    if isinstance(other, LRScheduler):
        prepared.split_batches = True  # Otherwise it moves `num_processes` times in every step.
    return prepared


class _WorkerState:
    """What each worker saves and loads with `save_state` and `load_state`.

    `load_state` loads models, optimizers, schedulers, the scaler and then registered objects, all
    of the first process. The optimizer's state is replaced on its way; model and scaler are
    replaced at the end, by this object, as the last one that is loaded.
    """

    def __init__(self, accelerator: Accelerator, module: nn.Module, local: LocalSGD) -> None:
        self._accelerator = accelerator
        self._module = module
        self._local = local
        self._loaded: worker_files.State = {}
        before = sum(isinstance(known, _WorkerState) for known in accelerator._custom_objects)
        self._name = f"localsgd_{before}" if before else "localsgd"
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        local.register_load_state_dict_pre_hook(self._own_state)
        accelerator.register_for_checkpointing(self)

    def _save(self, models: list[nn.Module], weights: list[dict], folder: str) -> None:
        worker_files.write(
            Path(folder) / self._name,
            self._module,
            self._local,
            scaler=self._accelerator.scaler,
        )
        place = self._place(models)
        with self._local.averaged_model():
            weights[place] = self._accelerator.get_state_dict(self._module, unwrap=False)

    def _load(self, models: list[Any], folder: str) -> None:
        self._loaded = worker_files.read(Path(folder) / self._name)
        models[self._place(models)] = _Passed()

    def _place(self, models: list[nn.Module]) -> int:
        return next(place for place, model in enumerate(models) if model is self._module)

    def _own_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return self._loaded.get("optimizer", state)

    def state_dict(self) -> dict[str, Any]:
        """Nothing, as workers have files of their own."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own, self._loaded = self._loaded, {}
        self._module.load_state_dict(own["model"])
        worker_files.put_gradients(self._module, own)
        if own["scaler"] is not None and self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(own["scaler"])


class _Passed:
    """A model that takes what it is given, and leaves it."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> tuple[list, list]:
        return [], []
