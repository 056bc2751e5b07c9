"""Checkpoints at validation and under one name, and signals that reach one process, or all."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from localsgd.errors import UserError
from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS, Killed, killed_at, launched
from tests.integrations.frameworks import example as program
from tests.integrations.test_examples import LIGHTNING, arguments, assert_ended_by_hand

pytest.importorskip("lightning", reason="needs localsgd[lightning]")


def saved_at_validation(given: dict[str, Any]) -> None:
    """Cut off in the second epoch, and taken up from the checkpoint of the first validation."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    def best(folder: Path, **_: Any) -> ModelCheckpoint:
        return ModelCheckpoint(folder, monitor="accuracy", mode="max", save_top_k=-1)

    for cut in (True, False):
        module = program(LIGHTNING.program)
        module.ModelCheckpoint = best
        with launched(), killed_at(35 if cut else 0), suppress(Killed):
            module.main(**given)


def test_a_checkpoint_at_validation_has_each_workers_own_model(crew: Crew, tmp_path: Path) -> None:
    crew.run(saved_at_validation, (arguments(tmp_path, accumulate=1),), SECONDS)
    saved = sorted(path.stem for path in tmp_path.glob("epoch=*.ckpt"))
    assert saved == ["epoch=0-step=30", "epoch=1-step=60"]  # In the middle of a round of 4.
    assert_ended_by_hand(LIGHTNING, tmp_path, accumulate=1)


def newest_under_one_name(given: dict[str, Any], cut: str) -> None:
    """Every checkpoint is `last.ckpt`. It is cut off while the third one is written."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from localsgd.integrations import lightning

    def last(folder: Path, **_: Any) -> ModelCheckpoint:
        return ModelCheckpoint(
            folder,
            filename="step=last",
            every_n_train_steps=5,
            enable_version_counter=False,
            auto_insert_metric_name=False,
        )

    class CutOff(lightning.LocalSGDStrategy):
        """Dies with the files of workers written, and the checkpoint not, or both."""

        saves = 0

        def barrier(self, name: str | None = None) -> None:
            super().barrier(name)
            if name is None and self.saves == 3 and cut == "before":
                raise Killed

        def save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
            type(self).saves += 1
            super().save_checkpoint(*arguments, **keywords)
            if self.saves == 3:
                raise Killed

    module = program(LIGHTNING.program)
    module.ModelCheckpoint = last
    module.LocalSGDStrategy = CutOff
    with launched(), suppress(Killed):
        module.main(**given)
    assert CutOff.saves == 3
    dist.barrier()
    CutOff.saves = 10
    module = program(LIGHTNING.program)
    module.ModelCheckpoint = last
    with launched():
        module.main(**given)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_checkpoint_that_takes_anothers_place_loses_neither(
    crew: Crew, tmp_path: Path, cut: str
) -> None:
    crew.run(newest_under_one_name, (arguments(tmp_path, accumulate=1), cut), SECONDS)
    assert_ended_by_hand(LIGHTNING, tmp_path, accumulate=1)
    (part,) = tmp_path.glob("step=last.ckpt.localsgd/*")
    assert part.name == "step-60-batch-60"


def from_an_earlier_version(given: dict[str, Any], earlier: str) -> list[str]:
    """Goes on from a checkpoint whose workers' files lie in its folder itself, or in a part of
    another name; what is said of one that names another folder.
    """
    module = program(LIGHTNING.program)
    with launched(), killed_at(17), suppress(Killed):
        module.main(**given)
    newest = max(given["out"].glob("*.ckpt"), key=os.path.getmtime)
    folder = Path(f"{newest}.localsgd")
    whole = torch.load(newest, weights_only=False)
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({**whole, "localsgd": "../elsewhere"}, newest)
    dist.barrier()
    with launched(), pytest.raises(UserError) as refused:
        program(LIGHTNING.program).main(**given)
    dist.barrier()
    if dist.get_rank() == 0:
        part = folder / whole.pop("localsgd")
        if earlier == "parts by step":
            part.rename(folder / "step-15")
            torch.save({**whole, "localsgd": "step-15"}, newest)
        else:
            torch.save(whole, newest)
            for file in part.iterdir():
                file.rename(folder / file.name)
            part.rmdir()
    dist.barrier()
    with launched():
        program(LIGHTNING.program).main(**given)
    return [str(refused.value), *(path.name for path in folder.iterdir())]


@pytest.mark.parametrize(
    ("earlier", "there"),
    [("no parts", ["worker-0.pt", "worker-1.pt"]), ("parts by step", ["step-15"])],
)
def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(
    crew: Crew, tmp_path: Path, earlier: str, there: list[str]
) -> None:
    given = arguments(tmp_path, accumulate=1)
    for said, *files in crew.run(from_an_earlier_version, (given, earlier), SECONDS):
        assert "is damaged: its workers' files are in '../elsewhere'" in said
        assert sorted(files) == there
    assert_ended_by_hand(LIGHTNING, tmp_path, accumulate=1)


@contextmanager
def signalled_at(number: int, batches: dict[int, int]) -> Iterator[None]:
    """Sends a signal to each of these ranks in a batch of its own, counted from 1."""
    calls = 0
    whole = torch.nn.functional.cross_entropy

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()
        if torch.is_grad_enabled() and calls == batches.get(dist.get_rank()):
            os.kill(os.getpid(), number)
        return whole(*args, **kwargs)

    with mock.patch("torch.nn.functional.cross_entropy", counted):
        yield


def told_to_end(given: dict[str, Any], rank: int, batch: int) -> tuple[int, list[str]]:
    """The number of steps after which the run has ended; handlers that are not Lightning's."""
    module = program(LIGHTNING.program)
    found: list[Any] = []
    module.Trainer = partial(kept, found, module.Trainer)
    with launched(), signalled_at(signal.SIGTERM, {rank: batch}), pytest.raises(SystemExit):
        module.main(**given)
    (trainer,) = found
    left = [name for name in vars(trainer._signal_connector) if name.endswith("_fn")]
    return trainer.strategy.local_sgd.steps, left


def kept(found: list[Any], make: Callable[..., Any], **keywords: Any) -> Any:
    found.append(make(**keywords))
    return found[-1]


@pytest.mark.parametrize(("rank", "batch", "end"), [(0, 17, 20), (1, 17, 20), (1, 60, 60)])
def test_one_that_is_told_to_end_ends_all_after_the_sync(
    crew: Crew, tmp_path: Path, rank: int, batch: int, end: int
) -> None:
    """In the last round too, after which nothing is asked."""
    given = arguments(tmp_path, accumulate=1)
    assert crew.run(told_to_end, (given, rank, batch), SECONDS) == [(end, []), (end, [])]


def requeued(given: dict[str, Any]) -> int:
    """How often the job is requeued: Slurm tells all processes, each in a batch of its own."""
    from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    from localsgd.integrations.lightning import LocalSGDStrategy

    class Requeued(SLURMEnvironment):
        """Slurm's handling of signals with the ranks of the test."""

        names = ("creates_processes_externally", "main_address", "main_port", "node_rank")
        for name in (*names, "world_size", "set_world_size", "global_rank", "set_global_rank"):
            locals()[name] = getattr(TorchElasticEnvironment, name)
        local_rank = TorchElasticEnvironment.local_rank

    os.chdir(given["out"])
    called: list[Any] = []
    place = "lightning.pytorch.trainer.connectors.signal_connector.call"
    for cut in (True, False):
        module = program(LIGHTNING.program)
        environment = Requeued(auto_requeue=True)
        module.LocalSGDStrategy = partial(LocalSGDStrategy, cluster_environment=environment)
        told = signalled_at(signal.SIGUSR1, {0: 17, 1: 18} if cut else {})
        with (
            mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7"}),
            mock.patch(place, lambda command: called.append(command) or 0),
            launched(),
            told,
            killed_at(26 if cut else 0),
            suppress(Killed),
        ):
            module.main(**given)
        if cut and dist.get_rank() == 0:
            for path in given["out"].glob("*step=*.ckpt*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()
    return len(called)


def test_a_job_that_slurm_requeues_saves_after_the_sync_and_goes_on(
    crew: Crew, tmp_path: Path
) -> None:
    assert crew.run(requeued, (arguments(tmp_path, accumulate=1),), SECONDS) == [1, 0]
    assert_ended_by_hand(LIGHTNING, tmp_path, accumulate=1)


def addressed(given: dict[str, Any], what: str) -> int:
    """The number of steps with checkpoints at an address."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Elsewhere(ModelCheckpoint):
        """Has been told an address, and never writes there."""

        def __init__(self, folder: Path, **_: Any) -> None:
            super().__init__(folder, every_n_epochs=50, save_weights_only=what == "weights")
            self.dirpath = "memory://bucket/run"

    module = program(LIGHTNING.program)
    module.ModelCheckpoint = Elsewhere
    found: list[Any] = []
    module.Trainer = partial(kept, found, module.Trainer)
    with launched():
        module.main(**given)
    return found[0].strategy.local_sgd.steps


def test_an_address_is_no_folder_of_workers(crew: Crew, tmp_path: Path) -> None:
    """Refused before anything is trained, unless nothing of a worker is saved there."""
    given = arguments(tmp_path, accumulate=1)
    assert crew.run(addressed, (given, "weights"), SECONDS) == [60, 60]
    with pytest.raises(Exception, match=r"memory://bucket/run is an address, .* copy them"):
        crew.run(addressed, (given, "all"), SECONDS)
