"""The paper's cost of communication beside the models', as tables in Markdown.

    python -m experiments.cost_model        # the tables of docs/cost-model.md

Everything here is modelled, except the paper's own numbers (`paper.toml`) and what is counted in
the package's networks.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments import clock
from experiments.clock import WORKERS
from experiments.markdown import table
from experiments.registry import entry, size_of
from experiments.studies import all_reduce, speedup
from localsgd.cost.allreduce import ALGORITHMS
from localsgd.cost.counts import syncs
from localsgd.cost.equation import Cluster, printed, seconds
from localsgd.cost.speedup import price_from

LOCAL_STEPS = (16, 32)
TITLES = {
    "resnet20": "ResNet-20",
    "imagenet-resnet50": "ResNet-50",
    "densenet40-12": "DenseNet-40-12",
    "wrn28-10": "WRN-28-10",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet-1k",
}
"""Networks and data as the paper calls them."""


def scaling() -> str:
    """Parameters, operations and their ratio, the paper's and ours."""
    rows = []
    for one in entry("scaling-ratio").values:
        size = size_of(one["model"], one["task"])
        rows.append(
            [
                TITLES[one["model"]],
                TITLES[one["task"]],
                f"{one['parameters']:.2f} M",
                f"{one['operations']:g} G",
                f"{one['ratio']:.2f}",
                f"{size.parameters:,}",
                f"{size.multiplications:,}",
                f"{size.ratio:.2f}",
            ]
        )
    header = ["model", "data", "parameters", "operations", "ratio"]
    return _table([*header, "parameters, counted", "multiply-adds, counted", "ratio"], rows)


def counts() -> str:
    """Syncs within 16 steps where H H^b = 16, as Table multi_gpus_hierarchical_local_sgd."""
    rows = []
    for local_steps in (1, 2, 4, 8, 16):
        count = syncs(16, 1, 1, local_steps, 16 // local_steps)
        rows.append([local_steps, 16 // local_steps, count.inside, count.across])
    return _table(["H", "H^b", "inside a server", "of all"], rows)


def equation(across: float = 10.0) -> str:
    """Eq. comm_cost for 300 epochs of CIFAR-10, B = 128, with C1 = 1: as printed, and as a time."""
    rows = []
    for servers in (8, 4, 2):
        cluster = Cluster(WORKERS, servers, 1.0, across)
        for local_steps, block_steps in ((1, 1), (16, 1), (1, 16), (2, 8), (4, 4), (8, 2)):
            count = syncs(300 * 50_000, cluster.workers, 128, local_steps, block_steps)
            rows.append(
                [
                    f"{servers}x{cluster.workers // servers}",
                    local_steps,
                    block_steps,
                    f"{count.inside:,}",
                    f"{count.across:,}",
                    f"{printed(cluster, count):,.0f}",
                    f"{seconds(cluster, count):,.0f}",
                ]
            )
    return _table(["servers", "H", "H^b", "inside", "of all", "as printed", "as a time"], rows)


def whole_runs() -> str:
    """The speed-up of whole runs from that of the second phase."""
    rows = []
    for one in speedup.settings():
        row = [TITLES[one.model], TITLES[one.task]]
        for h in LOCAL_STEPS:
            row += [f"{number:.2f}" for number in (one.second[h], one.derived(h), one.whole[h])]
        rows.append(row)
    header = ["model", "data"]
    for h in LOCAL_STEPS:
        header += [f"2nd phase, H = {h}", "whole run, derived", "whole run, paper"]
    return _table(header, rows)


def predicted() -> str:
    """The speed-up of whole runs from H = 1 alone: S(H) = K / (1 + price / H)."""
    rows = []
    for one in speedup.settings():
        price = price_from(WORKERS, one.whole[1])
        row = [TITLES[one.model], TITLES[one.task], f"{one.whole[1]:.2f}", f"{price:.2f}"]
        for h in LOCAL_STEPS:
            found, measured = one.predicted(h), one.whole[h]
            row += [f"{found:.2f}", f"{measured:.2f}", f"{100 * (found / measured - 1):+.1f} %"]
        rows.append(row)
    header = ["model", "data", "H = 1, paper", "price in steps"]
    for h in LOCAL_STEPS:
        header += [f"H = {h}, predicted", "paper", "error"]
    return _table(header, rows)


def minutes() -> str:
    """T(H) = compute + syncing / H beside the paper's minutes."""
    fitted, paper = clock.fitted(), clock.minutes()
    errors = fitted.errors(paper)
    rows = [
        [h, f"{measured:.2f}", f"{fitted.time(h):.2f}", f"{100 * errors[h]:+.1f} %"]
        for h, measured in paper.items()
    ]
    return _table(["H", "paper, minutes", "T(H), minutes", "error"], rows)


def all_reduces() -> str:
    """Seconds for an all-reduce of 100 MB over 10 Gbit/s and 50 microseconds a message."""
    rows = [
        [workers, *(f"{time:.3f}" for time in all_reduce.modelled(workers).values())]
        for workers in (1, 2, 3, 4, 8, 16, 48, 96, 192, 1024)
    ]
    return _table(["K", *(f"{name}, s" for name in ALGORITHMS)], rows)


def page() -> dict[str, str]:
    """All tables by title."""
    return {
        "Scaling ratio": scaling(),
        "Syncs within 16 steps": counts(),
        "Eq. comm_cost with C2 = 10 C1": equation(),
        "Whole runs, from their second phase": whole_runs(),
        "Whole runs, from H = 1 alone": predicted(),
        "Training time over H": minutes(),
        "All-reduce of 100 MB": all_reduces(),
    }


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return table(headings, [[str(one) for one in row] for row in rows])


if __name__ == "__main__":
    print("\n\n".join(f"## {title}\n\n{shown}" for title, shown in page().items()))
