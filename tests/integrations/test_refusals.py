"""What can't work with local steps is refused in one line, or set right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import localsgd
from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS, launched


def test_the_frameworks_are_loaded_with_their_integration_only() -> None:
    code = """
import sys
names = ("accelerate", "transformers", "lightning")
import localsgd, localsgd.integrations
assert not [name for name in names if name in sys.modules]
for name in names:
    sys.modules[name] = None  # importing it raises
    sys.modules.pop("localsgd.integrations.accelerate", None)
    try:
        __import__(f"localsgd.integrations.{name}")
    except ModuleNotFoundError as error:
        assert "pip install 'localsgd[" in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def said(call: Callable[[], Any]) -> str:
    """The message of the refusal."""
    try:
        call()
    except localsgd.UserError as error:
        return str(error)
    return "nothing"


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0))


def accelerate_says() -> dict[str, Any]:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.data_loader import DataLoaderDispatcher

    from localsgd.integrations.accelerate import check_accelerator, prepare

    with launched():
        accelerator = Accelerator(cpu=True)
        model, inner = pair()
        scheduler = torch.optim.lr_scheduler.ConstantLR(inner)

        def refusal(*given: Any) -> str:
            return said(lambda: prepare(accelerator, *given, local_steps=2))

        fsdp = SimpleNamespace(
            parallelism_config=None, distributed_type=SimpleNamespace(value="FSDP")
        )
        hsdp = SimpleNamespace(parallelism_config=SimpleNamespace(dp_replicate_size=2))
        found: dict[str, Any] = {
            "HSDP": said(lambda: check_accelerator(hsdp)),
            "FSDP": said(lambda: check_accelerator(fsdp)),
            "DDP": refusal(DistributedDataParallel(model), inner),
            "LocalSGD": refusal(model, localsgd.LocalSGD(inner, model, local_steps=2)),
            "optimizer": refusal(model, accelerator.prepare_optimizer(inner)),
            "scheduler": refusal(model, inner, accelerator.prepare_scheduler(scheduler)),
            "two models": refusal(model, inner, nn.Linear(1, 1)),
        }
        *_, loader = prepare(accelerator, *pair(), DataLoader(Stream()), local_steps=2)
        found["set right"] = isinstance(loader, DataLoaderDispatcher)
        # Our optimizer made first, and the model wrapped afterwards.
        model, inner = pair()
        wrapped, optimizer = accelerator.prepare(
            model, localsgd.LocalSGD(inner, model, local_steps=2)
        )
        wrapped(torch.ones(3, 2)).sum().backward()
        found["order"] = said(optimizer.step)
        accelerator.dataloader_config = DataLoaderConfiguration(dispatch_batches=True)
        found["dispatch"] = said(lambda: check_accelerator(accelerator))
        return found


def test_accelerate(crew: Crew) -> None:
    pytest.importorskip("accelerate", reason="needs localsgd[accelerate]")
    for found in crew.run(accelerate_says, (), SECONDS):
        assert not found.pop("set right")
        for what, words in {
            "HSDP": "dp_replicate_size=2",
            "FSDP": "whole models",
            "DDP": "bare model",
            "LocalSGD": "plain one",
            "optimizer": "plain one",
            "scheduler": "plain scheduler",
            "two models": "once for each pair",
            "order": "wrap the model before LocalSGD is made",
            "dispatch": "dispatch_batches=False",
        }.items():
            assert words in found[what], (what, found[what])


def trainer_says(folder: str) -> dict[str, Any]:
    from transformers import TrainingArguments

    from localsgd.integrations.transformers import LocalSGDTrainer

    model, inner = pair()
    plain = TrainingArguments(folder, use_cpu=True, report_to="none")

    def refusal(optimizers: Any = (None, None), **given: Any) -> str:
        arguments = TrainingArguments(folder, use_cpu=True, report_to="none", **given)

        def train() -> None:
            LocalSGDTrainer(
                model,
                arguments,
                train_dataset=[{"x": torch.ones(2)}] * 8,
                optimizers=optimizers,
                local_sgd={"local_steps": 2},
            ).train(resume_from_checkpoint=None)

        return said(train)

    with launched():
        LocalSGDTrainer(model, plain, local_sgd={"local_steps": 2})
        return {
            "set right": not plain.average_tokens_across_devices,
            "tokens": refusal(include_num_input_tokens_seen="all"),
            "batch size": refusal(auto_find_batch_size=True),
            "dispatch": refusal(accelerator_config={"dispatch_batches": True}),
            "LocalSGD": refusal((localsgd.LocalSGD(inner, model, local_steps=2), None)),
        }


def test_trainer(crew: Crew, tmp_path: Any) -> None:
    pytest.importorskip("transformers", reason="needs localsgd[transformers]")
    for found in crew.run(trainer_says, (str(tmp_path),), SECONDS):
        assert found.pop("set right")
        for what, words in {
            "tokens": 'set it to "no"',
            "batch size": "per_device_train_batch_size",
            "dispatch": "dispatch_batches=False",
            "LocalSGD": "give it the plain optimizer",
        }.items():
            assert words in found[what], (what, found[what])


def lightning_says() -> dict[str, Any]:
    from lightning.pytorch import LightningModule, Trainer

    from localsgd.integrations.lightning import LocalSGDStrategy

    class Module(LightningModule):
        def __init__(self, make: Callable[[nn.Module], Any]) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)
            self.make = make
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).sum()

        def configure_optimizers(self) -> Any:
            return self.make(self)

    def plain(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.1)

    def refusal(make: Callable[[nn.Module], Any], **given: Any) -> str:
        strategy = LocalSGDStrategy(local_steps=2)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(strategy=strategy, accelerator="cpu", devices=2, **quiet, **given)
        loader = DataLoader(TensorDataset(torch.ones(8, 2)))
        return said(lambda: trainer.fit(Module(make), loader))

    with launched():
        try:
            LocalSGDStrategy(local_step=2)
        except TypeError as error:
            wrong_name = str(error)
        return {
            "name": wrong_name,
            "two": refusal(lambda m: [plain(m), plain(m)]),
            "LocalSGD": refusal(lambda m: localsgd.LocalSGD(plain(m), m, local_steps=2)),
            "sync_batchnorm": refusal(plain, sync_batchnorm=True),
        }


def test_lightning(crew: Crew) -> None:
    pytest.importorskip("lightning", reason="needs localsgd[lightning]")
    for found in crew.run(lightning_says, (), SECONDS):
        for what, words in {
            "name": "local_step",
            "two": "takes one",
            "LocalSGD": "return the plain optimizer",
            "sync_batchnorm": "leave it out",
        }.items():
            assert words in found[what], (what, found[what])
