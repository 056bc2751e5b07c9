"""`localsgd reproduce`: runs the work behind the tables and figures, and shows the results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import engine, listing, showing
from experiments.registry import entries, entry
from experiments.report.content import judged_pages
from experiments.scales import scale_of
from experiments.store import RESULTS, Store, canonical
from experiments.studies import studies
from experiments.study import Job, Scale, ScaleName, Study
from localsgd.basics.console import Console
from localsgd.basics.shards import share
from localsgd.errors import UserError
from localsgd.train.engine.run_folder import check_place

WORK = Path("runs") / "reproduce"


@dataclass(frozen=True)
class Request:
    """The options of `reproduce`.

    Args:
        names: labels or short names.
        everything: all of them.
        listing: list them, and do nothing.
        show: what the paper has, and do nothing.
        scale: how large.
        seeds: of every arm; the scale's if not given.
        tune: rates of baselines, if a study has that; always at the paper's scale.
        shard: `I/N`, the I-th of N shares of the work.
        processes: at a time; one for each core if not given.
        data_dir: where data sets lie.
        out: where records are kept.
        work: for pictures, and for what interrupted runs go on from.
    """

    names: tuple[str, ...] = ()
    everything: bool = False
    listing: bool = False
    show: bool = False
    scale: ScaleName = "small"
    seeds: int | None = None
    tune: bool = False
    shard: str = "1/1"
    processes: int | None = None
    data_dir: Path | None = None
    out: Path = RESULTS
    work: Path = WORK

    def check(self) -> None:
        """Raises for options that are out of range."""
        if sum((bool(self.names), self.everything, self.listing)) != 1:
            raise UserError(
                "reproduce needs labels or short names, --all for all there are, or --list; give "
                "one of them"
            )
        for name in ("seeds", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value} cannot be; give 1 or more")
        share([], self.shard)


def reproduce(request: Request, console: Console | None = None) -> int:
    """Lists labels, shows what the paper has, or runs what is missing and shows the results."""
    console = console or Console()
    request.check()
    if request.listing:
        console.print(listing.overview(request.out))
        return 0
    wanted = [entry(name) for name in request.names] or list(entries().values())
    if request.show:
        for one in wanted:
            console.print(listing.details(one))
        return 0
    return _carry_out(request, [studies()[one.label] for one in wanted], console)


def _carry_out(request: Request, wanted: Sequence[Study], console: Console) -> int:
    check_place(request.out)
    check_place(request.work, "--work")
    scale = scale_of(request.scale, request.seeds, tunes=request.tune)
    wanted = _designed(wanted, scale, named=bool(request.names))
    for study in wanted:
        if scale.name in study.designed and request.seeds is not None:
            raise UserError(
                f"{entry(study.label).both} has its numbers of seeds in its design; leave --seeds "
                "out"
            )
    store = Store(scale, request.out)
    everything = engine.distinct(job for study in wanted for job in study.jobs(scale))
    mine = share(everything, request.shard)
    console.print(showing.forecast(mine, store, _processes(request, mine)))
    for study in wanted:
        whole = _more_than_jobs(study, store)
        if whole:
            mine_of_all = engine.share_by_key(whole, request.shard)
            processes = _processes(request, mine_of_all)
            console.print(showing.outlook(study, mine_of_all, store, processes))
    place = engine.Place(request.work / scale.name, request.data_dir)
    try:
        outcome = engine.carry_out(mine, store, place, _processes(request, mine), console)
        while more := _later(request, wanted, everything, store, outcome):
            console.print(showing.forecast(more, store, _processes(request, more)))
            found = engine.carry_out(more, store, place, _processes(request, more), console)
            outcome.failed |= found.failed
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on, and nothing finished is lost")
        return 130
    pages, pictures = judged_pages(store), request.work / scale.name / "pictures"
    for study in wanted:
        showing.show(study, pages[study.label], store, pictures, console)
    for title, reason in outcome.failed.items():
        console.print(f"not done: {title}: {reason}", style="red", markup=False)
    return 1 if outcome.failed else 0


def _more_than_jobs(study: Study, store: Store) -> list[Job]:
    """All work of a study whose jobs are only its first part; nothing if they are all of it."""
    if study.whole is None:
        return []
    whole = engine.distinct(study.whole(store))
    return whole if len(whole) > len(engine.distinct(study.jobs(store.scale))) else []


def _designed(wanted: Sequence[Study], scale: Scale, *, named: bool) -> list[Study]:
    """The studies with a design at the scale; raises if a named one has none."""
    found = [study for study in wanted if scale.name in study.scales]
    for study in wanted:
        if named and scale.name not in study.scales:
            raise UserError(
                f"{entry(study.label).both} has no design at scale {scale.name}; choose "
                f"--scale {' or '.join(study.scales)}"
            )
    return found


def _later(
    request: Request,
    wanted: Sequence[Study],
    first: Sequence[Job],
    store: Store,
    outcome: engine.Outcome,
) -> list[Job]:
    """Jobs that follow from the results so far and are not done; none once a job has failed.

    Args:
        first: jobs that have their shares already.
    """
    if outcome.failed:
        return []
    store.refresh()
    shared = {canonical(job.key) for job in first}
    more = engine.distinct(job for study in wanted for job in study.later(store))
    mine = engine.share_by_key(
        [job for job in more if canonical(job.key) not in shared], request.shard
    )
    return [job for job in mine if store.of(job) is None]


def _processes(request: Request, jobs: Sequence[Job]) -> int:
    return min(request.processes or os.cpu_count() or 1, max(1, len(jobs)))
