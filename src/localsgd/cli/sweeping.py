"""The command `sweep`: settings varied over seeds, and compared with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from localsgd.basics.console import Console
from localsgd.basics.shards import shard_of, share
from localsgd.basics.units import plural
from localsgd.cli.comparing import check_runs, check_varied, folder_name
from localsgd.cli.forecasting import forecast, in_shards, names_in
from localsgd.cli.options import Hosting, SweepCommand
from localsgd.cli.swept import check_same, keep, table
from localsgd.cli.training import (
    SAME,
    TRUNKS,
    complete,
    here,
    interrupted,
    leads,
    start,
    starts_processes,
    stopping,
    task_of,
    verdict,
    without_auto,
)
from localsgd.errors import UserError
from localsgd.results.grouping import groups
from localsgd.show import pictures
from localsgd.show.plot_sweep import sweep as picture
from localsgd.train.config.parts import command_line
from localsgd.train.config.run import Run
from localsgd.train.config.vary import Point, point, points, seeds_of, word_of
from localsgd.train.data import tasks
from localsgd.train.engine.run_folder import Folder
from localsgd.train.launch import find_world


def sweep(command: SweepCommand) -> int:
    """Trains the runs of this shard that have not ended; shows all once they have."""
    command.hosting.check()
    runs, varied = swept(command), points(command.vary)
    baseline = completed(baseline_of(command, varied), varied, runs)
    if baseline is None and command.baseline is not None:
        raise UserError(
            f"--baseline {command.baseline} stands for several values of a setting; vary the "
            "values themselves"
        )
    baseline = baseline or whole(varied[0], varied, runs)
    names = list(varied[0].values)
    check_runs(command.out, runs)
    check_same(command.out, list(runs), names)
    _, count = shard_of(command.shard)
    mine = {name: runs[name] for name in names_in(share(in_shards(runs, count), command.shard))}
    hosting = without_auto(command.hosting, list(runs.values()))
    console = Console(quiet=hosting.quiet or not leads())
    _foretell(mine, command, hosting, console)
    if command.forecast:
        return 0
    if leads():
        keep(command.out, list(runs), names, baseline)
    status = _train(mine, command, hosting)
    if status == 0:
        _report(command.out, runs, names, baseline, console, hosting.use)
    return status or verdict([command.out / name for name in mine])


def swept(command: SweepCommand) -> dict[str, Run]:
    """The completed runs of a sweep by the names of their folders; configurations in order, seed
    by seed.

    Raises:
        UserError: a setting or a value can't be, has no effect, or gives a run twice.
    """
    if not command.vary:
        raise UserError("sweep has nothing to vary; write --vary local_steps=1,4,16 lr=0.1,0.2")
    varied, seeds = points(command.vary), seeds_of(command.seeds)
    if not seeds:
        raise UserError("sweep needs seeds; write --seeds 0..4")
    runs: dict[str, Run] = {}
    for seed in seeds:
        for choice in varied:
            changed = msgspec.structs.replace(choice.of(command.run), seed=seed)
            runs[f"{folder_name(choice)}-seed{seed}"] = _completed(changed, choice)
    check_varied(runs, varied)
    judged = {tasks.card(wanted.task).metric.name for wanted in runs.values()}
    if len(judged) > 1:
        raise UserError(
            f"tasks judged by {' and by '.join(sorted(judged))} can't be compared; sweep them apart"
        )
    return runs


def _completed(wanted: Run, choice: Point) -> Run:
    try:
        return complete(wanted)
    except UserError as error:
        raise UserError(f"{choice.name}: {error}") from None


def baseline_of(command: SweepCommand, varied: Sequence[Point]) -> Point:
    """The settings that differences are to: those named, else the first of the first axis."""
    if command.baseline is None:
        first = command.vary[0].partition("=")[0].split("/")
        return point({name: varied[0].words[name] for name in first})
    chosen = named(command.baseline)
    for name in chosen.values:
        if name not in varied[0].values:
            raise UserError(f"--baseline names {name}, which is not varied; name one that is")
    if not any(chosen.values.items() <= choice.values.items() for choice in varied):
        raise UserError(
            f"--baseline {command.baseline} is not among the runs: "
            + "; ".join(dict.fromkeys(choice.name for choice in varied))
        )
    return chosen


def completed(baseline: Point, varied: Sequence[Point], runs: Mapping[str, Run]) -> Point | None:
    """The baseline with the values that its runs have: some are written otherwise, such as None.

    `None` if its runs have several: lr=None is another rate for another method.

    Args:
        baseline: as it was written.
        varied: the configurations.
        runs: completed; the first ones are of the first seed, one for each configuration.
    """
    of = zip(varied, runs.values(), strict=False)
    mine = [run for choice, run in of if baseline.values.items() <= choice.values.items()]
    words = dict(baseline.words)
    for name, value in baseline.values.items():
        found = list(dict.fromkeys(getattr(run, name) for run in mine))
        if len(found) > 1:
            return None
        if found[0] != value:
            words[name] = word_of(found[0])
    return point(words)


def whole(choice: Point, varied: Sequence[Point], runs: Mapping[str, Run]) -> Point:
    """A configuration as a baseline, with the values that its runs have."""
    found = completed(choice, varied, runs)
    assert found is not None, "one configuration has one value of each setting"
    return found


def named(text: str) -> Point:
    """The settings in a text such as `local_steps=1,lr=0.1`."""
    words: dict[str, str] = {}
    for part in text.split(";" if ";" in text else ","):
        name, is_there, word = part.partition("=")
        if not is_there or not word or name.strip() in words:
            raise UserError(f"--baseline {text!r} is not understood; write local_steps=1,lr=0.1")
        words[name.strip()] = word.strip()
    return point(words)


def _foretell(
    mine: Mapping[str, Run], command: SweepCommand, hosting: Hosting, console: Console
) -> None:
    """The forecast, before anything is trained. Others who take part say nothing."""
    if console.quiet:
        return
    folders = {name: Folder(command.out / name) for name in mine}
    processes = find_world().size if hosting.processes is None else int(hosting.processes)
    part = "" if command.shard == "1/1" else f" (shard {command.shard})"
    found = forecast(mine, folders, processes, lambda wanted: task_of(wanted, hosting))
    console.print(f"Sweep{part}: {found}", highlight=False, soft_wrap=True)
    if command.forecast:
        console.print("\n".join(mine), highlight=False, soft_wrap=True)


def _train(mine: Mapping[str, Run], command: SweepCommand, hosting: Hosting) -> int:
    def stopped() -> str:
        return interrupted([command.out / name for name in mine], SAME)

    if starts_processes(hosting, list(mine.values())):

        def arguments(config: Path) -> list[str]:
            return [
                *("sweep", f"--config={config}", f"--out={command.out}"),
                *("--vary", *command.vary, "--seeds", *command.seeds),
                f"--shard={command.shard}",
            ]

        return start(hosting, command.run, arguments, stopped)
    due = {name: run for name, run in mine.items() if Folder(command.out / name).summary() is None}
    if due:
        with stopping(stopped), here(next(iter(due.values())), hosting) as host:
            for name, wanted in due.items():
                host.train_unless_ended(wanted, command.out / name, name, command.out / TRUNKS)
    return 0


def _report(
    out: Path,
    runs: Mapping[str, Run],
    names: Sequence[str],
    baseline: Point,
    console: Console,
    use: Sequence[str],
) -> None:
    """The table and the pictures, once all runs of all shards have ended."""
    if not leads():
        return
    folders = [Folder(out / name) for name in runs]
    left = sum(folder.summary() is None for folder in folders)
    if left:
        console.print(
            f"{plural(left, 'run')} of {len(runs)} are not done yet; the same command without "
            "--shard shows the results then"
        )
        return
    console.print(table(folders, names, baseline))
    picture(groups(folders), names, out / "sweep.png")
    pictures.comparison(folders, out / "comparison.png")
    places = f"Pictures: {out / 'sweep.png'}, {out / 'comparison.png'}"
    plain = not any("," in word for word in baseline.words.values())
    against = ["--baseline", baseline.name] if plain else []
    export = ["localsgd", "export", str(out), "--latex", "table.tex", *against]
    said = f"{places}\nTable: {command_line(export, use)}"
    console.print(said, highlight=False, soft_wrap=True)
