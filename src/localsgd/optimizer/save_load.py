"""Saves and loads all that training needs: one call on all ranks, whole or not at all.

The folder is a checkpoint of `torch.distributed.checkpoint`; `save_parts.py` says what is in it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from localsgd.basics.files import as_saved, is_address
from localsgd.basics.messages import read_messages
from localsgd.errors import PeerLost, UserError
from localsgd.optimizer import averaged_file
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.regroup import Momenta
from localsgd.optimizer.save_found import Found
from localsgd.optimizer.save_parts import averaged_weights, own_parts
from localsgd.saving.tree import POSITION

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
        >>> import tempfile, torch
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
    tensors = _agreed(lead, "save", lambda: own_parts(model, optimizers, more), names)
    files = {
        averaged_file.NAME: partial(
            averaged_file.write, tensors=averaged_weights(model, optimizers)
        )
    }
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
    """Goes on from what `save` has written. Collective.

    Nothing is changed if anything of it is refused before loading begins; an object of `more` that
    refuses its own state leaves all loaded in part.

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
        UserError: on all ranks, if there is nothing, or it is damaged, or of something else, or one
            of its files is a link; on a rank alone, if an object of `more` refuses its state.
    """
    place, optimizers = _absolute(folder), _listed(optimizer)
    lead = optimizers[0]
    found: Found = _agreed(
        lead, "load", lambda: Found.read(place, model, optimizers, momenta, more)
    )
    with as_saved(place, "the model and its optimizers are loaded in part, so begin anew"):
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
    made, problem, own = None, "", None
    try:
        _wait_for_the_last()
        made = make()
    except (PeerLost, dist.DistError):  # The others notice it by themselves.
        raise
    except Exception as error:  # The others must hear of a fault of the program too.
        own = error
        plain = str(error) if isinstance(error, UserError) else f"{call}() failed: {error!r}"
        problem = " ".join(plain.split())
    detail = json.dumps([problem, getattr(made, "id", ""), [] if problem else names_of(made)])
    told = read_messages(lead.meet(call, detail), tuple[str, str, list[str]])
    if own is not None and not isinstance(own, UserError):
        raise own
    for rank, (text, *_) in enumerate(told):
        if text:
            raise UserError(text if lead.workers == 1 else f"rank {rank}: {text}") from own
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


def _listed(optimizer: LocalSGD | Sequence[LocalSGD]) -> Sequence[LocalSGD]:
    found = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    for one in found:
        if not isinstance(one, LocalSGD):
            raise UserError(
                f"{type(one).__name__} is no LocalSGD; give the optimizer that LocalSGD(...) "
                "returned, or a list of several"
            )
        if one.membership is not None:
            raise UserError(
                "with fault_tolerance each worker saves for itself, and all would write one "
                "folder; save optimizer.state_dict() and the model's by torch.save, each worker to "
                "a file of its own"
            )
    if not found:
        raise UserError("the list of optimizers is empty; give at least one LocalSGD")
    return found


def _absolute(folder: str | os.PathLike[str]) -> Path:
    """Where the folder is; for a link where it leads, as a save replaces the folder itself."""
    if is_address(folder):
        raise UserError(
            f"{folder} is an address, and a save needs a folder that all ranks see; save there, "
            "and copy it"
        )
    place = Path(os.path.abspath(folder))
    return Path(os.path.realpath(place)) if place.is_symlink() else place
