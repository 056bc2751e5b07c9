"""A language model, whose tokens the Trainer would count at every step; older checkpoints."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from tests.distributed.harness import Crew
from tests.integrations.frameworks import SECONDS, BySteps, Killed, killed_at, launched
from tests.integrations.frameworks import example as program

pytest.importorskip("transformers", reason="needs localsgd[transformers]")


def language_model(folder: str) -> tuple[list[list[str]], dict[str, Any]]:
    """What crossed in each step, and the final weights by name."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from localsgd.integrations.transformers import LocalSGDTrainer

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    texts = torch.randint(32, (48, 8), generator=torch.Generator().manual_seed(0))
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
    with launched(), BySteps() as steps:
        trainer = LocalSGDTrainer(
            model,
            TrainingArguments(
                folder,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                max_steps=10,
                use_cpu=True,
                **quiet,
            ),
            train_dataset=[{"input_ids": text, "labels": text} for text in texts],
            local_sgd={"local_steps": 4, "outer": "diloco"},
        )
        trainer.train()
        trainer.save_model(folder)
    weights = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    return steps.steps, weights


def test_nothing_crosses_between_syncs_and_all_weights_are_saved(
    crew: Crew, tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    (crossed, weights), (_, others) = crew.run(language_model, (str(tmp_path),), SECONDS)
    assert [step for step, names in enumerate(crossed, 1) if names] == [1, 4, 5, 8, 9]
    saved = GPT2LMHeadModel.from_pretrained(tmp_path).state_dict()
    assert saved.keys() == weights.keys()
    for name, tensor in saved.items():
        assert (tensor.numpy() == weights[name]).all(), name
        assert (weights[name] == others[name]).all(), name


def late(folder: str) -> list[bool]:
    """Whether rank 0 finds rank 1's file, which comes late, when it goes on after a save."""
    from localsgd.integrations import transformers, worker_files

    write, found = worker_files.write, []

    def slowly(*arguments: Any, **keywords: Any) -> None:
        if dist.get_rank() == 1:
            time.sleep(1.0)
        write(*arguments, **keywords)

    class Looks(transformers.LocalSGDTrainer):
        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            super()._save_optimizer_and_scheduler(output_dir)
            found.append(worker_files.file_of(Path(output_dir) / "localsgd", 1).exists())

    module = program("with_trainer")
    module.LocalSGDTrainer = Looks
    slow = mock.patch.object(worker_files, "write", slowly)
    with launched(), slow, killed_at(8), suppress(Killed):
        module.main(out=Path(folder), epochs=1, accumulate=1, dtype=torch.float64)
    return found


def test_older_checkpoints_stay_until_all_workers_have_written(crew: Crew, tmp_path: Path) -> None:
    """The Trainer removes them right after this, on rank 0."""
    assert crew.run(late, (str(tmp_path),), SECONDS) == [[True], [True]]
