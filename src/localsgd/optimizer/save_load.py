"""Saves and loads all that training needs: one call on all ranks, whole or not at all.

The folder is a checkpoint of `torch.distributed.checkpoint`. Everything in it stands under its
worker, `worker-00002/model/0.weight`: PyTorch takes equal keys for replicas, and would put together
a model of some tensors of one worker and some of another, without a word.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.optimizer import averaged_file
from localsgd.optimizer.ddp import unwrapped
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.regroup import Momenta, Regrouped
from localsgd.optimizer.save_source import Source, name_of
from localsgd.optimizer.saved import check_inner
from localsgd.optimizer.wrapping import KEY
from localsgd.rows.shards import cut_like, is_sharded, reshard
from localsgd.saving.tree import POSITION, as_tensor, as_text, pack

ABOUT = "about"
"""The tensor that says, as JSON, what all workers share."""

FORMAT = 1
"""Of what is saved; another one when it changes."""

PARTS = ("model", "optimizers", "objects", "values", "random")
"""Of what a worker saves."""

GRADIENTS = "gradients"
"""A part that is saved only where some wait for further micro-batches."""

log = logging.getLogger("localsgd")


def save(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: LocalSGD | Sequence[LocalSGD],
    *,
    asynchronous: bool = False,
    **more: Any,
) -> Future[None]:
    """Saves model and optimizer of every worker, and the averaged model. Collective.

    Call it on all ranks after the same step, in the middle of a round too. `load` goes on from
    there with the same bits. `FOLDER/model.safetensors` is the averaged model, for everyone else.
    What was in the folder is replaced once all ranks have written; a save that is killed leaves
    what was there before.

    Examples:
        >>> import tempfile
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = LocalSGD(torch.optim.SGD(model.parameters(), 0.1), model, local_steps=8)
        >>> folder = tempfile.mkdtemp() + "/save"
        >>> _ = save(folder, model, optimizer, epoch=3)
        >>> load(folder, model, optimizer)
        {'epoch': 3}

    Args:
        folder: on a file system that all ranks share.
        model: as `LocalSGD` was given it.
        optimizer: one or several, such as those of a GAN, whose parameters are all in `model`.
        asynchronous: copy everything, return, and write while training goes on. Call `result()` of
            what is returned before the process group is ended. A next save waits for this one.
        more: by name, objects with `state_dict` and `load_state_dict` (a scheduler, a `GradScaler`,
            an average of weights), and numbers, text or tensors. Each rank's own are saved.

    Returns:
        A future that is done when the folder is in its place.

    Raises:
        UserError: on all ranks, if it can't be saved.
    """
    from localsgd.saving.store import write  # takes a while to import

    place, optimizers = _absolute(folder), _listed(optimizer)
    lead = optimizers[0]
    names = _names_of_stage if lead.agreement.of_stages else lambda _: []
    tensors = _agreed(lead, "save", lambda: _own(model, optimizers, more), names)
    averaged = _averaged(model, optimizers)
    files = {averaged_file.NAME: partial(averaged_file.write, tensors=averaged)}
    with lead.apart() as group:
        if not asynchronous:
            write(place, tensors, group, files)
            done: Future[None] = Future()
            done.set_result(None)
            return done
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    return _in_background(partial(write, place, copies, group, files))


def load(
    folder: str | os.PathLike[str],
    model: nn.Module,
    optimizer: LocalSGD | Sequence[LocalSGD],
    *,
    momenta: Momenta = "average",
    **more: Any,
) -> dict[str, Any]:
    """Goes on from what `save` has written. Collective; nothing is changed if anything is refused.

    Make model and optimizer as they were made when they were saved. Another number of workers may
    go on: they begin a new round from the averaged model, with the mean of the error memories; what
    becomes of the rest is said in the log.

    Args:
        folder, model, optimizer: as for `save`.
        momenta: for another number of workers: `"average"` of the inner optimizers' states, or
            `"reset"`.
        more: by name, the objects whose state was saved.

    Returns:
        The numbers, text and tensors that were saved, by name.

    Raises:
        UserError: on all ranks, if there is nothing, or it is damaged, or of something else.
    """
    place, optimizers = _absolute(folder), _listed(optimizer)
    lead = optimizers[0]
    found: _Found = _agreed(
        lead, "load", lambda: _Found.read(place, model, optimizers, momenta, more)
    )
    found.put(model, optimizers, more)
    if found.said and lead.worker == 0:
        log.warning(found.said)
    return found.tree["values"]


def saved(folder: str | os.PathLike[str]) -> bool:
    """Whether there is something in `folder` that `load` can go on from."""
    from localsgd.saving.store import there

    return there(_absolute(folder)) is not None


_running: list[Future[None]] = []
"""The save in the background, if there is one."""


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "localsgd-save")


def _in_background(work: Callable[[], None]) -> Future[None]:
    _running.append(_executor().submit(work))
    _running[0].add_done_callback(_tell)
    return _running[0]


def _tell(done: Future[None]) -> None:
    """Says at once that it has failed, as nobody may ask."""
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error(f"a save in the background has failed: {error}")


def _wait_for_the_last() -> None:
    if _running:
        _running.pop().result()


def _agreed(
    lead: LocalSGD,
    call: str,
    make: Callable[[], Any],
    names_of: Callable[[Any], list[str]] = lambda _: [],
) -> Any:
    """What `make` returns, if no rank refuses; else all ranks raise the first refusal.

    Args:
        names_of: of what was made, which no two ranks may have.
    """
    made, problem = None, ""
    try:
        _wait_for_the_last()
        made = make()
    except UserError as error:
        problem = str(error)
    detail = json.dumps([problem, getattr(made, "id", ""), [] if problem else names_of(made)])
    told = [json.loads(text) for text in lead.meet(call, detail)]
    for rank, (text, *_) in enumerate(told):
        if text:
            raise UserError(text if lead.workers == 1 else f"rank {rank}: {text}")
    if len({name for _, name, _ in told}) > 1:
        raise UserError("ranks read different saves; give all a folder that they share")
    _check_stages([names for *_, names in told])
    return made


def _names_of_stage(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of a stage's tensors, as those of the whole model of its worker."""
    return [POSITION.sub("", name, count=1) for name in tensors if "/model/state/" in name]


def _check_stages(names: Sequence[Sequence[str]]) -> None:
    """Refuses stages of which two have one name, so that there is no whole to put them in.

    Args:
        names: of each rank's stage.
    """
    ranks: dict[str, int] = {}
    for rank, own in enumerate(names):
        for name in own:
            if (first := ranks.setdefault(name, rank)) != rank:
                raise UserError(
                    f"ranks {first} and {rank} hold stages of one model, and both have "
                    f"{name.partition('/model/state/')[2]}; make stages that keep the names of the "
                    "whole model, or save each rank's state_dict() by torch.save"
                )


def _own(model: nn.Module, optimizers: Sequence[LocalSGD], more: Any) -> dict[str, Tensor]:
    """All tensors of this worker, under its name, and what all workers share."""
    averaged_file.check_safetensors()
    module = _checked(model, optimizers)
    state = module.state_dict()
    lead = optimizers[0]
    stages = lead.agreement.of_stages
    if stages and any(map(is_sharded, state.values())):
        raise UserError(
            "ranks of a worker hold stages of the model that are sharded as well, and names of "
            "shards don't say of which stage they are; save the state_dict() of each rank's model "
            "and optimizer by torch.save, and load it on the same rank"
        )
    objects = {name: one.state_dict() for name, one in more.items() if _has_state(name, one)}
    tree = {
        "model": {"state": state, "versions": getattr(state, "_metadata", None)},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "objects": objects,
        "values": {name: value for name, value in more.items() if name not in objects},
        "random": _random(),
    }
    tensors: dict[str, Tensor] = {}
    own = name_of(lead.worker, lead.agreement.position, lead.agreement.positions)
    if any(optimizer.accumulating for optimizer in optimizers):
        named = module.named_parameters()
        tree[GRADIENTS] = {name: p.grad for name, p in named if p.grad is not None}
    for part in tree:
        found, text = pack(tree[part], f"{own}/{part}")
        tensors |= found
        tensors[f"{own}/{part}.json"] = as_tensor(text)
    about = {"format": FORMAT, "workers": lead.workers, "steps": lead.steps}
    if lead.agreement.positions > 1:
        about |= {"positions": lead.agreement.positions, "stages": stages}
    return {**tensors, ABOUT: as_tensor(json.dumps(about))}


def _averaged(model: nn.Module, optimizers: Sequence[LocalSGD]) -> dict[str, Tensor]:
    """The averaged model, on rank 0 alone."""
    with ExitStack() as stack:
        for optimizer in optimizers:
            stack.enter_context(optimizer.averaged_model())
        if optimizers[0].worker:
            return {}
        found = averaged_file.copied(unwrapped(model)[0].state_dict())
        agreement = optimizers[0].agreement
        if agreement.of_stages:
            return {name: own[name] for own in agreement.gathered(found) for name in own}
        return {} if agreement.position else found


class _Found:
    """What was read for this worker, checked.

    Args:
        id: of the save.
        tree: the parts of it, by name.
        said: what became of them if the number of workers is another one.
        regrouped: of each optimizer, if it is.
    """

    def __init__(
        self, id: str, tree: dict[str, Any], said: str = "", regrouped: Sequence[Regrouped] = ()
    ) -> None:
        self.id = id
        self.tree = tree
        self.said = said
        self._regrouped = regrouped

    @staticmethod
    def read(
        place: Path,
        model: nn.Module,
        optimizers: Sequence[LocalSGD],
        momenta: Momenta,
        more: Mapping[str, Any],
    ) -> _Found:
        from localsgd.saving.store import Saved

        averaged_file.check_safetensors()
        module, files = _checked(model, optimizers), Saved(place)
        about = json.loads(as_text(files.read([ABOUT])[ABOUT]))
        if about["format"] != FORMAT:
            raise UserError(
                f"{place} has the format {about['format']}, and this version reads {FORMAT}; go on "
                "with the version that it was saved by"
            )
        lead = optimizers[0]
        then, now = about["workers"], lead.workers
        _check_cut(place, about, lead)
        source = Source(files, about.get("positions", 1), module, optimizers)
        worker = lead.worker if then == now else 0
        accumulating = [GRADIENTS] if source.has(worker, GRADIENTS) else []
        tree = source.read(worker, [*PARTS, *accumulating])
        found = _Found(files.id, tree)
        if len(tree["optimizers"]) != len(optimizers):
            raise UserError(
                f"{place} was saved with {len(tree['optimizers'])} optimizers, not with "
                f"{len(optimizers)}; give the same in the same order"
            )
        if then != now or source.positions != lead.agreement.positions:
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
        self._regrouped = [Regrouped(momenta, rows=alike) for _ in optimizers]
        current = [optimizer.state_dict() for optimizer in optimizers]
        for worker in range(then):
            states = source.read(worker, ["optimizers"])["optimizers"]
            for regrouped, state, here in zip(self._regrouped, states, current, strict=True):
                check_inner(state[KEY]["made_with"], here[KEY]["made_with"])
                regrouped.add(state)
        for index, (one, optimizer) in enumerate(zip(self._regrouped, optimizers, strict=True)):
            self.tree["optimizers"][index] = state = one.state(current[index])
            optimizer.check_state_dict(state)
        self.tree["random"] = None
        dropped = "; gradients of micro-batches: dropped" if self.tree.pop(GRADIENTS, None) else ""
        self.said = (
            f"{source.files.place} was saved by {plural(then, 'worker')} and is gone on from by "
            f"{now}, at step {self.tree['optimizers'][0]['local_sgd']['steps']}: all begin a new "
            f"round from the averaged model; {self._regrouped[0].said}{dropped}; all else is "
            f"worker 0's; a step sees {now}/{then} times the samples"
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
            _set_random(self.tree["random"])


def _checked(model: nn.Module, optimizers: Sequence[LocalSGD]) -> nn.Module:
    """The user's own module, which must have all parameters of the optimizers."""
    module, _ = unwrapped(model)
    there = set(map(id, module.parameters()))
    for optimizer in optimizers:
        if not all(id(p) in there for g in optimizer.param_groups for p in g["params"]):
            raise UserError(
                "the model lacks parameters of the optimizer; give the model that LocalSGD was "
                "given, or an nn.ModuleList of those that several were"
            )
    return module


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
        shapes = [getattr(each[name], "shape", None) for each in (state, now)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{place} was saved of another model: {name} was {shapes[0]} and is {shapes[1]}; "
                "use the model that it was saved with"
            )


def _check_more(objects: Mapping[str, Any], more: Mapping[str, Any], place: Path) -> None:
    for name in more:
        if not _has_state(name, more[name]):
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


def _has_state(name: str, value: Any) -> bool:
    if isinstance(value, LocalSGD):
        raise UserError(f"{name} is a LocalSGD; give all of them as a list: [first, second]")
    return all(callable(getattr(value, call, None)) for call in ("state_dict", "load_state_dict"))


def _listed(optimizer: LocalSGD | Sequence[LocalSGD]) -> Sequence[LocalSGD]:
    found = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    for one in found:
        if not isinstance(one, LocalSGD):
            raise UserError(
                f"{type(one).__name__} is no LocalSGD; give the optimizer that LocalSGD(...) "
                "returned, or a list of several"
            )
    if not found:
        raise UserError("the list of optimizers is empty; give at least one LocalSGD")
    return found


def _random() -> dict[str, Any]:
    """Torch's random numbers, of the CPU and of this process's GPU."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if on_gpu else None,
    }


def _set_random(random: Mapping[str, Any]) -> None:
    torch.set_rng_state(random["cpu"])
    if random["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


def _absolute(folder: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(folder))
