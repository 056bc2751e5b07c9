"""Runs as tables: several beside each other, or one in detail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from localsgd.averaging.topology import Topology
from localsgd.basics.units import count, duration, plural, size
from localsgd.results import grouping
from localsgd.results.grouping import Group, Record, Spread, is_diverged
from localsgd.results.labels import beyond_averaging, level_name, local_steps, options
from localsgd.show.narrow import Fitting
from localsgd.show.sparklines import thin
from localsgd.train.config.parts import going_on, used_by_method
from localsgd.train.config.plan import Plan, known
from localsgd.train.config.run import Run
from localsgd.train.engine import checkpoints
from localsgd.train.engine.run_folder import Folder

EVALUATIONS = 12
"""Most evaluations of a run that are shown; of more, evenly spread ones are."""
DIVERGED = "weights or losses are no finite numbers any more"
LOWER = "try a lower --lr or a longer --lr-warmup"
Figure = Callable[[dict[str, Any]], float | None]
Words = Callable[[float], str]


def comparison(folders: Sequence[Folder]) -> Table:
    """A table with a row for each run: its results and its cost.

    Runs that differ in their seeds alone share a row, with mean ± sample standard deviation.
    Figures by level stand one below the other, innermost first.
    """
    found = grouping.groups(folders)
    table = _table(caption=_caption(found), caption_justify="left")
    columns = list(_columns(found))
    for name, right, _ in columns:
        _add_column(table, name, right)
    for group in found:
        table.add_row(*(cell(group) for _, _, cell in columns))
    return table


def _table(**options: Any) -> Table:
    options = {"box": box.SIMPLE_HEAD, "show_edge": False, "pad_edge": False, **options}
    return Fitting(padding=(0, 1, 0, 0), **options)


def _add_column(table: Table, name: str, right: bool) -> None:
    """Adds a column; if there is little room, words are broken over lines before numbers."""
    side = "right" if right else "left"
    table.add_column(name, justify=side, overflow="fold", no_wrap=right)


Column = tuple[str, bool, Callable[[Group], str]]


def _columns(found: Sequence[Group]) -> Iterator[Column]:
    """Columns: title, whether it holds numbers, and a function for the cell of a group."""
    several = len({group.run.topology for group in found}) > 1
    yield "method", False, partial(_method, topology=several)
    yield "H", False, lambda group: local_steps(group.run)
    metric = grouping.metric(found)
    yield f"test\n{metric.short}", True, _cell(metric.key, metric.figure)
    yield "best\nepoch", True, _cell(metric.best, metric.figure)
    if any(group.spread(lambda last: last.get(metric.local)) for group in found):
        yield "local\nmodels", True, _cell(metric.local, metric.figure)
    yield "train\nloss", True, _cell("train_loss", lambda loss: f"{loss:.3f}")
    yield "syncs", True, _by_level(lambda last: last["syncs"], count)
    yield "sent per\nmember", True, _by_level(_ledger("bytes"), size)
    yield "time", True, lambda group: _mean(group, lambda last: last["seconds"], duration)
    yield "rank 0\nwaited", True, _by_level(_ledger("seconds"), duration)


def _method(group: Group, topology: bool) -> str:
    """The name, with the topology if runs differ in it, the number of runs, and their progress."""
    parts = [group.label]
    if topology:
        parts.append(f"on {group.run.topology}")
    if len(group.records) > 1:
        parts.append(plural(len(group.records), "run"))
    return "\n".join(parts) + _unfinished(group)


def _cell(name: str, words: Words) -> Callable[[Group], str]:
    return lambda group: _spread(group.spread(lambda last: last.get(name)), words)


def _spread(spread: Spread | None, words: Words) -> str:
    if spread is None:
        return "–"
    if spread.deviation is None:
        return words(spread.mean)
    return f"{words(spread.mean)}\n±{words(spread.deviation)}"


def _ledger(name: str) -> Callable[[dict[str, Any]], list[float]]:
    return lambda last: [entry[name] for entry in last["ledger"]]


def _by_level(
    figures: Callable[[dict[str, Any]], list[float]], words: Words
) -> Callable[[Group], str]:
    return lambda group: "\n".join(
        _mean(group, lambda last, level=level: figures(last)[level], words)
        for level in range(group.levels)
    )


def _mean(group: Group, figure: Figure, words: Words) -> str:
    spread = group.spread(figure)
    return "–" if spread is None else words(spread.mean)


def _unfinished(group: Group) -> str:
    """A note if a run of the group has not ended."""
    epochs = [record.last.get("epoch", 0.0) for record in group.records if record.summary is None]
    if not epochs:
        return ""
    return f"\n(at epoch {min(epochs):.1f} of {group.run.epochs:g})"


def _caption(found: Sequence[Group]) -> Text:
    """A caption: the meaning of the numbers, and the settings that all runs share."""
    metric = grouping.metric(found)
    lines = [
        f"{metric.title} of the averaged model; local models: mean of the workers' own.",
        "Bytes are what a worker hands over, measured, before any ring or tree.",
    ]
    if any(group.levels > 1 for group in found):
        lines.append("Where there are several levels, the innermost stands first.")
    if any(len(group.records) > 1 for group in found):
        lines.append("± is the sample standard deviation over runs that differ in their seeds.")
    return Text("\n".join(lines), style="dim")


def run(folder: Folder) -> RenderableType:
    """Tables of one run: its settings, progress or results, evaluations, and traffic."""
    record = Record.read(folder)
    parts: list[RenderableType] = [_facts(record)]
    if record.rows:
        parts.append(_evaluations(record))
    if record.last:
        parts.append(_traffic(record))
    return Stack(*parts)


def _facts(record: Record) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _configuration(record.run):
        grid.add_row(name, value)
    for name, value in _machine(record.folder):
        grid.add_row(name, value)
    for name, value in _result(record) if record.summary else _state(record):
        grid.add_row(name, value)
    return grid


def _rising(run: Run) -> str:
    """The warm-up in words; there is one only if the rate is scaled up."""
    scale = Plan(run, known(run.workers) * known(run.batch)).lr_scale
    epochs = plural(float(f"{run.lr_warmup:.3g}"), "epoch")
    return f"warm-up {epochs}" if scale > 1 else "no warm-up"


def _momentum(run: Run) -> str:
    """The momentum in words; empty if the inner optimizer has none."""
    if run.optimizer in ("adam", "adamw"):
        return ""
    nesterov = run.nesterov and run.momentum and run.optimizer in ("sgd", "sign")
    return f", momentum {run.momentum:g}{' (Nesterov)' if nesterov else ''}"


def _falling(run: Run) -> str:
    if run.lr_schedule == "cosine":
        return f"falling along a cosine to {run.lr_floor:g} of the peak"
    if run.lr_schedule == "cyclic":
        return f"{plural(run.lr_cycles, 'cosine cycle')}"
    decays = ", ".join(f"{share:g}" for share in run.lr_decay_at or ())
    return f"x {run.lr_decay:g} at {decays} of the run"


def _configuration(run: Run) -> Iterator[tuple[str, str]]:
    subset = f", {count(run.train_samples)} training samples" if run.train_samples else ""
    yield "task", f"{run.task}, {run.model}{options(run, run.model)}{subset}"
    switch = f", switch {run.switch}" if "switch" in (used_by_method(run) or ()) else ""
    yield "method", f"{run.method}{options(run, run.method)}, H = {local_steps(run)}{switch}"
    beyond = beyond_averaging(run)
    if beyond:
        yield "syncs", ", ".join(beyond)
    yield "workers", f"{run.workers} ({run.topology}), batch {run.batch} each"
    yield (
        "learning rate",
        f"{run.lr:g} for {plural(known(run.lr_batch), 'sample')}, scaling {run.lr_scaling}, "
        f"{_rising(run)}, {_falling(run)}",
    )
    yield "optimizer", f"{run.optimizer}{_momentum(run)}, weight decay {run.weight_decay:g}"
    yield "others", ", ".join(_others(run))


def _others(run: Run) -> Iterator[str]:
    yield f"seed {run.seed}"
    yield run.precision
    yield f"{run.reduction} reduction"
    yield f"batch norm {run.batch_norm}"
    yield from ["compiled"] if run.compile else []
    yield from ["channels last"] if run.channels_last else []
    yield from [f"starting from {run.init}"] if run.init else []


def _machine(folder: Folder) -> Iterator[tuple[str, str]]:
    found = folder.environment()
    if found:
        yield (
            "machine",
            f"{found.get('device_name')}, processes: {found.get('processes')}, "
            f"torch {found.get('torch')}",
        )


def _result(record: Record) -> Iterator[tuple[str, str]]:
    last, metric = record.last, record.metric
    local = last[metric.local]
    epoch = "" if last["best_epoch"] is None else f" at epoch {last['best_epoch']:.1f}"
    best = f"best {metric.words(last[metric.best], 2)}{epoch}"
    own = f"; local models {metric.words(local, 2)}" if local is not None else ""
    if is_diverged(last):
        yield "diverged", f"{DIVERGED}; {LOWER}"
    yield "result", f"test {metric.name} {metric.words(last[metric.key], 2)}; {best}{own}"
    yield (
        "time",
        f"{duration(last['seconds'])} of training for {plural(last['samples'], 'sample')} "
        f"({count(last['samples'] / max(last['seconds'], 1e-9))} a second)"
        + "".join(f"; {what} {duration(spent)}" for what, spent in last.get("paused", {}).items()),
    )


def _state(record: Record) -> Iterator[tuple[str, str]]:
    saved = checkpoints.checkpoints(record.folder.checkpoints)
    last = record.rows[-1] if record.rows else None
    yield (
        "state",
        f"not ended: evaluated up to step {count(last['step'])}, epoch {last['epoch']:.1f} of "
        f"{record.run.epochs:g}"
        if last
        else "not ended: nothing evaluated yet",
    )
    if saved:
        step = checkpoints.step_of(saved[-1])
        command = going_on(record.run, record.folder.path)
        yield "checkpoint", f"of step {count(step)}; go on with: {command}"
    else:
        yield "checkpoint", "none yet"


def _evaluations(record: Record) -> Table:
    rows = thin(record.rows, EVALUATIONS)
    title = "evaluations of the averaged model"
    if len(rows) < len(record.rows):
        title += f" ({len(rows)} of {len(record.rows)})"
    table = _table(title=title, title_justify="left")
    metric = record.metric
    judged = f"test {metric.name}"
    for name in ("epoch", "step", "train loss", "test loss", judged, "lr", "sent", "time"):
        _add_column(table, name, right=True)
    for row in rows:
        table.add_row(
            f"{row['epoch']:.1f}",
            count(row["step"]),
            f"{row['train_loss']:.4f}",
            f"{row['test_loss']:.4f}",
            metric.words(row[metric.key], 2),
            f"{row['lr']:.3g}",
            size(sum(entry["bytes"] for entry in row["ledger"])),
            duration(row["seconds"]),
        )
    return table


def arrived_bytes(entry: Mapping[str, Any], members: int) -> float:
    """Bytes that have arrived at a member.

    For an old record all collectives count as sums by a ring, with 2 (M - 1)/M of the bytes sent
    (Patarasuk and Yuan, 2009).
    """
    return entry.get("arrived", 2 * (members - 1) / members * entry["bytes"])


def _traffic(record: Record) -> Table:
    topology = Topology.parse(record.run.topology or 8)
    table = _table(title="traffic of one member of each level", title_justify="left")
    table.add_column("level")
    for name in ("members", "syncs", "calls", "sent\n(measured)", "rank 0 waited\n(measured)"):
        _add_column(table, name, right=True)
    table.add_column("arrived\n(modelled)", justify="right", style="dim")
    sizes = list(topology.sizes)
    sizes[0] = (*topology.unequal, sizes[0])[0]  # the first block's, whose traffic it is
    entries = zip(record.last["ledger"], record.last["syncs"], sizes, strict=True)
    for level, (entry, syncs, members) in enumerate(entries):
        table.add_row(
            level_name(level, topology.levels),
            str(members),
            count(syncs),
            count(entry["calls"]),
            size(entry["bytes"]),
            duration(entry["seconds"]),
            size(arrived_bytes(entry, members)),
        )
    return table
