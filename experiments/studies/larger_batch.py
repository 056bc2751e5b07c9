"""Post-local SGD at twice the global batch (K = 32), and whether longer training closes its gap."""

from __future__ import annotations

from collections.abc import Iterator

from experiments import tuning
from experiments.arms import Arm, Row, jobs_of, published, table
from experiments.studies import nets
from experiments.studies.nets import NETS, TUNED, Ground, arms, gap_claims, ground
from experiments.study import Page, Records, Scale, Study
from experiments.training import TrainJob

LARGER = "tab:post_local_sgd_across_arch_and_tasks_accuracy_for_larger_batch_size"
LONGER = "tab:post_local_sgd_better_generalization_on_resnet20_cifar100"
STEPS = (8, 16)
EPOCHS = (300, 400, 500)
Arms = dict[str, Arm]


def by_net(scale: Scale) -> list[tuple[Ground, Arms]]:
    found = [ground(scale, net, "cifar100") for net in NETS]
    return [(of, arms(scale, of, 32, STEPS)) for of in found]


def by_length(scale: Scale) -> list[tuple[int, Ground, Arms]]:
    """ResNets, trained for 1, 4/3 and 5/3 times as long."""
    usual = ground(scale, "resnet20", "cifar100")
    base = usual.settings.get("epochs", scale.ground["epochs"])
    found = []
    for epochs in EPOCHS:
        length = round(base * epochs / EPOCHS[0], 3)
        settings = {**usual.settings, "epochs": length}
        if "evaluate_every" in usual.settings:
            settings["evaluate_every"] = length
        of = Ground(usual.net, usual.task, settings)
        found.append((epochs, of, arms(scale, of, 32, STEPS)))
    return found


def _rows(name: str, of: Ground, by: Arms, first: tuple, where: dict) -> Iterator[Row]:
    for key, batch, h in (
        ("small", 256, 1),
        ("large", 4096, 1),
        ("H = 8", 4096, 8),
        ("H = 16", 4096, 16),
    ):
        number = published(name, global_batch=batch, local_steps=h, **where)
        method = "mini-batch" if h == 1 else "post-local"
        yield Row((*first, method, 2 if batch == 256 else 32, h), by[key], (number,))


def page_of_nets(records: Records) -> Page:
    found = [(of, tuning.applied(records, by, TUNED)) for of, by in by_net(records.scale)]
    rows = [
        row
        for of, by in found
        for row in _rows("larger-batch", of, by, (of.words,), {"model": of.net})
    ]
    return Page(
        tables=[table("K = 32", ("network, data", "method", "K", "H"), rows, records)],
        claims=[
            one for of, by in found for one in gap_claims(records, of, by, "appendix C.5.1", STEPS)
        ],
        notes=nets.NOTES,
    )


def page_of_lengths(records: Records) -> Page:
    found = [
        (epochs, of, tuning.applied(records, by, TUNED))
        for epochs, of, by in by_length(records.scale)
    ]
    rows = [
        row
        for epochs, of, by in found
        for row in _rows("longer", of, by, (f"{of.settings['epochs']:g}",), {"epochs": epochs})
    ]
    claims = [
        one
        for epochs, of, by in found
        for one in gap_claims(
            records,
            Ground(of.net, of.task, {**of.settings, "model": _words(of)}),
            by,
            "appendix C.5.1",
            STEPS,
        )
    ]
    return Page(
        tables=[table("Longer training", ("epochs", "method", "K", "H"), rows, records)],
        claims=claims,
        notes=nets.NOTES,
    )


def _words(of: Ground) -> str:
    return f"{of.settings['epochs']:g} epochs, {of.settings['model']}"


def _jobs(groups: list[Arms]) -> list[TrainJob]:
    return jobs_of([one for by in groups for one in by.values()])


def _later(records: Records, groups: list[Arms]) -> list[TrainJob]:
    return tuning.later(records, [by[name] for by in groups for name in TUNED])


def _nets(scale: Scale) -> list[Arms]:
    return [by for _, by in by_net(scale)]


def _lengths(scale: Scale) -> list[Arms]:
    return [by for _, _, by in by_length(scale)]


STUDIES = (
    Study(
        LARGER,
        lambda scale: _jobs(_nets(scale)),
        page_of_nets,
        lambda records: _later(records, _nets(records.scale)),
    ),
    Study(
        LONGER,
        lambda scale: _jobs(_lengths(scale)),
        page_of_lengths,
        lambda records: _later(records, _lengths(records.scale)),
    ),
)
