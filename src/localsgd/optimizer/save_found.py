"""What `load` finds in a folder for this worker, checked before anything is changed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from localsgd.basics.files import as_saved
from localsgd.basics.units import plural
from localsgd.errors import UserError, short
from localsgd.optimizer import averaged_file
from localsgd.optimizer.ddp import unwrapped
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.regroup import Momenta, Regrouped
from localsgd.optimizer.save_parts import (
    ABOUT,
    FORMAT,
    GRADIENTS,
    PARTS,
    check_random,
    checked,
    has_state,
    set_random,
)
from localsgd.optimizer.save_source import Source
from localsgd.optimizer.saved import check_inner
from localsgd.optimizer.wrapping import KEY
from localsgd.rows.shards import cut_like, reshard
from localsgd.saving.tree import as_text, check_kinds


@dataclass
class Found:
    """What was read for this worker, checked.

    Args:
        id: of the save.
        tree: the parts of it, by name.
        said: what became of them if the number of workers is another one.
    """

    id: str
    tree: dict[str, Any]
    said: str = ""

    @staticmethod
    def read(
        place: Path,
        model: nn.Module,
        optimizers: Sequence[LocalSGD],
        momenta: Momenta,
        more: Mapping[str, Any],
    ) -> Found:
        with as_saved(place, "go on from an earlier save"):
            return Found._read(place, model, optimizers, momenta, more)

    @staticmethod
    def _read(
        place: Path,
        model: nn.Module,
        optimizers: Sequence[LocalSGD],
        momenta: Momenta,
        more: Mapping[str, Any],
    ) -> Found:
        from localsgd.saving.store import Saved

        averaged_file.check_safetensors()
        module, files = checked(model, optimizers), Saved(place)
        about = json.loads(as_text(files.read([ABOUT])[ABOUT]))
        if about["format"] != FORMAT:
            raise UserError(
                f"{place} has the format {short(about['format'])}, and this version reads "
                f"{FORMAT}; go on with the version that it was saved by"
            )
        _check(about)
        lead = optimizers[0]
        then, now = about["workers"], lead.workers
        _check_cut(place, about, lead)
        source = Source(files, about.get("positions", 1), module, optimizers)
        worker = lead.worker if then == now else 0
        accumulating = [GRADIENTS] if source.has(worker, GRADIENTS) else []
        tree = source.read(worker, [*PARTS, *accumulating])
        _check_parts(tree, module)
        found = Found(files.id, tree)
        if len(tree["optimizers"]) != len(optimizers):
            raise UserError(
                f"{place} was saved with {len(tree['optimizers'])} optimizers, not with "
                f"{len(optimizers)}; give the same in the same order"
            )
        again = zip(optimizers, tree["optimizers"], strict=True)
        anew = any(one.blocks != state[KEY]["made_with"].get("topology") for one, state in again)
        if anew or then != now or source.positions != lead.agreement.positions:
            found._regroup(source, then, now, optimizers, momenta)
            state, whole = module.state_dict(), averaged_file.read(files.place / averaged_file.NAME)
            tree["model"]["state"] |= {
                name: cut_like(value, state.get(name, value))
                for name, value in whole.items()
                if name in state or not about.get("stages")  # else it is of another stage
            }
        else:
            for optimizer, state in zip(optimizers, tree["optimizers"], strict=True):
                optimizer.check_state_dict(state)
        _check_names(module, tree["model"]["state"], place)
        _check_more(tree["objects"], more, place)
        return found

    def _regroup(
        self, source: Source, then: int, now: int, optimizers: Sequence[LocalSGD], momenta: Momenta
    ) -> None:
        alike = source.positions == optimizers[0].agreement.positions
        regrouped = [Regrouped(momenta, rows=alike) for _ in optimizers]
        current = [optimizer.state_dict() for optimizer in optimizers]
        for worker in range(then):
            states = source.read(worker, ["optimizers"])["optimizers"]
            for one, state, here in zip(regrouped, states, current, strict=True):
                check_inner(state[KEY]["made_with"], here[KEY]["made_with"])
                one.add(state)
        for index, (one, optimizer) in enumerate(zip(regrouped, optimizers, strict=True)):
            self.tree["optimizers"][index] = state = one.state(current[index])
            optimizer.check_state_dict(state)
        self.tree["random"] = None
        dropped = "; gradients of micro-batches: dropped" if self.tree.pop(GRADIENTS, None) else ""
        rest = "each worker's own"
        if then != now:
            rest = f"worker 0's; a step sees {now}/{then} times the samples"
        self.said = (
            f"{source.files.place} was saved by {plural(then, 'worker')} and is gone on from by "
            f"{now}, at step {self.tree['optimizers'][0]['local_sgd']['steps']}: all begin a new "
            f"round from the averaged model; {regrouped[0].said}{dropped}; all else is "
            f"{rest}"
        )

    def put(
        self, model: nn.Module, optimizers: Sequence[LocalSGD], more: Mapping[str, Any]
    ) -> None:
        """Loads everything."""
        state = OrderedDict(self.tree["model"]["state"])
        state._metadata = self.tree["model"]["versions"]  # type: ignore[attr-defined]
        module, _ = unwrapped(model)
        reshard(module)
        module.load_state_dict(state)
        for optimizer, own in zip(optimizers, self.tree["optimizers"], strict=True):
            optimizer.load_state_dict(own)
            optimizer.zero_grad()
        named, waiting = dict(module.named_parameters()), self.tree.get(GRADIENTS, {})
        for name, gradient in waiting.items():
            named[name].grad = gradient.to(named[name].device)
        for name, one in self.tree["objects"].items():
            more[name].load_state_dict(one)
        if self.tree["random"] is not None:
            set_random(self.tree["random"])


def _check(about: Mapping[str, Any]) -> None:
    """Raises for what all workers share, unless it is of the kinds that are saved."""
    for name, count in (("workers", about["workers"]), ("positions", about.get("positions", 1))):
        if type(count) is not int or count < 1:
            raise ValueError(f"{name} is {count!r}")


def _check_parts(tree: Mapping[str, Any], module: nn.Module) -> None:
    """Raises for parts of other kinds than `own_parts` saves, which would fail half loaded."""
    parameters = dict(module.named_parameters())
    versions = getattr(module.state_dict(), "_metadata", None)
    like = {
        **{part: {} for part in tree},
        "model": {"state": {}, "versions": versions},
        "optimizers": [],
        GRADIENTS: parameters,
    }
    for part, found in tree.items():
        if found is None:
            raise ValueError(f"its part {part} is empty")
        check_kinds(found, like[part], f"its part {part}")
    check_random(tree["random"])
    for name, gradient in tree.get(GRADIENTS, {}).items():
        if name not in parameters or not isinstance(gradient, Tensor):
            raise ValueError(f"it has a gradient of {name}, which is no parameter's")


def _check_cut(place: Path, about: Mapping[str, Any], lead: LocalSGD) -> None:
    """Refuses other stages than then: inner optimizers number their tensors stage by stage."""
    agreement = lead.agreement
    then = about["positions"] if about.get("stages") else 1
    now = agreement.positions if agreement.of_stages else 1
    if then != now:
        cuts = [f"in {count} stages" if count > 1 else "in one piece" for count in (then, now)]
        raise UserError(
            f"{place} was saved of a model {cuts[0]}, and this one is {cuts[1]}; cut it as it was, "
            f"or begin anew from the weights in {averaged_file.NAME}"
        )


def _check_names(module: nn.Module, state: Mapping[str, Any], place: Path) -> None:
    """Refuses the weights of another model."""
    now = module.state_dict()
    for name in (*now, *state):
        if name not in now or name not in state:
            raise UserError(
                f"{place} was saved of another model: only one of the two has {name}; use the "
                "model that it was saved with"
            )
        if isinstance(state[name], Tensor) != isinstance(now[name], Tensor):
            raise TypeError(f"{name} is of type {type(state[name]).__name__}")
        shapes = [getattr(each[name], "shape", None) for each in (state, now)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{place} was saved of another model: {name} was {shapes[0]} and is {shapes[1]}; "
                "use the model that it was saved with"
            )


def _check_more(objects: Mapping[str, Any], more: Mapping[str, Any], place: Path) -> None:
    for name in more:
        if not has_state(name, more[name]):
            raise UserError(
                f"{name} has no load_state_dict(), so nothing can be loaded into it; load() "
                "returns numbers, text and tensors by name"
            )
        if name not in objects:
            raise UserError(f"{place} has no state of {name}; it was saved without")
    for name in objects:
        if name not in more:
            raise UserError(
                f"{place} has a state of {name}, which would begin anew; give it to load()"
            )
