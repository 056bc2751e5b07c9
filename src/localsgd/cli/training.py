"""The commands `run`, `compare` and `resume`: executed here, or by processes started here."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import msgspec
import torch.distributed as dist
from rich.console import Console

from localsgd.averaging.topology import check_hosting
from localsgd.cli.last_launch import as_before, keep, processes_of
from localsgd.cli.options import (
    CompareCommand,
    Hosting,
    ResumeCommand,
    RunCommand,
    hosting_arguments,
)
from localsgd.errors import DIVERGED_EXIT, Diverged, UserError
from localsgd.show import pictures, tables
from localsgd.show.preview import preview
from localsgd.train.config.complete import complete_run
from localsgd.train.config.methods import method
from localsgd.train.config.parts import changed_plugins
from localsgd.train.config.run import Run, checked, to_json
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import pick_device
from localsgd.train.engine.execution import Execution
from localsgd.train.engine.run_folder import Folder, check_place, locked
from localsgd.train.launch import (
    Heartbeat,
    World,
    find_world,
    gather_bytes,
    is_launched,
    joined,
    launch,
    print_exit_message,
)
from localsgd.train.runs.live import Live
from localsgd.train.runs.opened import opened

TRUST = (
    "Several machines: anyone who can reach their ports can end or falsify this run. Keep them on "
    "a network that you trust, or in a tunnel."
)


def run(command: RunCommand) -> int:
    """Trains one run."""
    command.hosting.check()
    completed = complete(command.run)
    out = command.out or Path("runs") / f"{completed.task}-{completed.method}-{_now()}"
    Folder.check_new(out)  # on all ranks: if one left alone, the others would wait for it
    if command.quickest:
        completed = _quickest(completed, command.hosting)
    hosting = _without_auto(command.hosting, [completed])

    def arguments(config: Path) -> list[str]:
        return ["run", f"--config={config}", f"--out={out}"]

    def again() -> str:
        begun = (out / "run.json").is_file()
        return f"localsgd resume {out}" if begun else "the same command"

    if starts_processes(hosting, [completed]):
        return _start(hosting, completed, arguments, again) or _verdict([out])
    with _here(completed, hosting) as host:
        out = _same_on_all(out, command.out is None)
        host.train(completed, out, resuming=False)
    return _verdict([out])


def resume(command: ResumeCommand) -> int:
    """Continues one run, hosted as it was last unless the command says otherwise."""
    folder = Folder.open(command.folder)
    wanted = folder.run
    changed = changed_plugins(wanted)
    if find_world().rank == 0 and not is_launched():
        Console(quiet=command.hosting.quiet).print(*changed, sep="\n", end="\n" if changed else "")
    complete(wanted)  # refuses an impossible run before anything starts
    hosting = as_before(command.folder, command.hosting)
    hosting.check()
    if folder.summary() is not None:
        raise UserError(f"{command.folder} has ended; see `localsgd show {command.folder}`")
    if hosting.processes == "auto":  # as many as it had, so that the bits stay the same
        hosting = replace(hosting, processes=processes_of(folder))
    if starts_processes(hosting, [wanted]):
        with locked(command.folder):  # one error message, before any process starts
            pass
        arguments, again = ["resume", str(command.folder)], f"localsgd resume {command.folder}"
        status = _start(hosting, wanted, lambda _: arguments, lambda: again)
        return status or _verdict([command.folder])
    with _here(wanted, hosting) as host:
        host.train(wanted, command.folder, resuming=True)
    return _verdict([command.folder])


def compare(command: CompareCommand) -> int:
    """Trains the methods and seeds that have not ended yet, and shows all of them together."""
    command.hosting.check()
    runs = compared(command)
    _check_comparison(command.out, runs)
    hosting = _without_auto(command.hosting, list(runs.values()))
    if starts_processes(hosting, list(runs.values())):

        def arguments(config: Path) -> list[str]:
            names = ["--methods", *command.methods]
            seeds = ["--seeds", *map(str, command.seeds)] if command.seeds else []
            return ["compare", f"--config={config}", f"--out={command.out}", *names, *seeds]

        status = _start(hosting, command.run, arguments, lambda: "the same command")
    else:
        with _here(next(iter(runs.values())), hosting) as host:
            for name, wanted in runs.items():
                host.train_unless_ended(wanted, command.out / name, title=name)
        status = 0
    if status == 0 and find_world().rank == 0 and not is_launched():
        folders = [Folder(command.out / name) for name in runs]
        report(command.out, folders, Console(quiet=command.hosting.quiet))
    return status or _verdict([command.out / name for name in runs])


def _verdict(paths: Sequence[Path]) -> int:
    """The exit status 0, unless a run has diverged.

    A process started by a launcher always returns 0: its launcher looks at the runs.

    Raises:
        Diverged: names the runs that have.
    """
    if is_launched():
        return 0
    ended = {path: Folder(path).summary() for path in paths}
    found = [str(path) for path, summary in ended.items() if summary and tables.diverged(summary)]
    if not found:
        return 0
    if find_world().rank:
        return DIVERGED_EXIT
    raise Diverged(f"diverged: {tables.DIVERGED} in {', '.join(found)}; {tables.LOWER}")


def complete(wanted: Run) -> Run:
    """The run with everything filled in and checked, before its data is read.

    Paths become absolute, so that the run can be continued from any folder.
    """
    init, partition = wanted.init, wanted.partition
    if init is not None:
        init = str(Path(init).expanduser().absolute())
    kind, _, path = partition.partition(":")
    if kind == "column" and path:
        partition = f"column:{Path(path).expanduser().absolute()}"
    given = msgspec.structs.replace(wanted, init=init, partition=partition)
    return complete_run(given, tasks.card(given.task))


def compared(command: CompareCommand) -> dict[str, Run]:
    """The runs of a comparison by the names of their folders.

    Flat methods put all workers on one level, and synchronise as often as the outermost level of
    hierarchical ones.
    """
    wanted = command.run
    topology = wanted.parsed_topology()
    given = wanted.local_steps or ((2,) * topology.levels if topology.levels > 1 else (8,))
    outermost = (math.prod(given),) if len(given) == topology.levels else given
    runs = {}
    for seed in command.seeds or (wanted.seed,):
        for name in command.methods:
            chosen = method(name)
            flat = not chosen.several_levels
            changed = msgspec.structs.replace(
                wanted,
                method=name,
                seed=seed,
                workers=None,
                topology=str(topology.workers) if flat else str(topology),
                local_steps=None if not chosen.uses else outermost if flat else given,
            )
            label = f"{name}-seed{seed}" if command.seeds else name
            runs[label] = complete(checked(changed))
    if not runs:
        raise UserError("there are no methods to compare; give some by --methods")
    return runs


def starts_processes(hosting: Hosting, runs: Sequence[Run]) -> bool:
    """Whether this process only starts others; checks that the workers of all `runs` fit them."""
    if hosting.processes is None:
        return False
    _check_alone("processes")
    assert isinstance(hosting.processes, int), "auto has been replaced by a number"
    for wanted in runs:
        check_hosting(wanted.parsed_topology(), hosting.processes)
    return hosting.processes != 1


def _check_alone(option: str) -> None:
    if find_world().size > 1:
        raise UserError(
            f"--{option} can't be used under torchrun or srun, which start the processes "
            "themselves; leave it out"
        )


def _without_auto(hosting: Hosting, runs: Sequence[Run]) -> Hosting:
    """`hosting` with the number that `--processes auto` chooses, which is printed."""
    if hosting.processes != "auto":
        return hosting
    _check_alone("processes auto")
    from localsgd.cli.process_count import choose_processes

    choice = choose_processes(runs, _task(runs[0], hosting))
    Console(quiet=hosting.quiet).print(str(choice))
    return replace(hosting, processes=choice.processes)


def _quickest(wanted: Run, hosting: Hosting) -> Run:
    _check_alone("quickest")
    from localsgd.cli.process_count import quickest

    return quickest(wanted, _task(wanted, hosting), Console(quiet=hosting.quiet))


def _task(wanted: Run, hosting: Hosting, local_rank: int = 0) -> Task:
    """The run's data, on this process's device."""
    task = tasks.load(wanted.task, hosting.data_dir, device=pick_device(wanted.device, local_rank))
    return task if wanted.train_samples is None else task.subset(wanted.train_samples)


def _start(
    hosting: Hosting,
    wanted: Run,
    arguments: Callable[[Path], Sequence[str]],
    again: Callable[[], str],
) -> int:
    with tempfile.TemporaryDirectory(prefix="localsgd-") as folder:
        config = Path(folder) / "run.json"
        config.write_bytes(to_json(wanted))
        command = [*arguments(config), *hosting_arguments(hosting)]
        assert isinstance(hosting.processes, int), "auto has been replaced by a number"
        status = launch(command, hosting.processes)
    if status > 128:
        print_exit_message(f"localsgd: interrupted; go on with: {again()}")
    return status


@dataclass
class Host:
    """This process, which trains its workers of one run after another."""

    world: World
    hosting: Hosting
    heartbeat: Heartbeat
    task: Task
    console: Console

    @property
    def loud(self) -> bool:
        return self.world.rank == 0 and not self.hosting.quiet

    def train(self, wanted: Run, path: Path, *, resuming: bool, title: str = "") -> None:
        """Trains `wanted` to its end."""
        hosting, leads = self.hosting, self.world.rank == 0
        live = Live(self.console, quiet=not self.loud, title=title)
        carried_out = opened(
            wanted,
            self.task,
            path,
            live,
            world=self.world,
            heartbeat=self.heartbeat,
            resuming=resuming,
            timeout=timedelta(minutes=hosting.timeout_minutes),
            checkpoint_every=hosting.checkpoint_every,
            watch=hosting.watch,
        )
        with live, carried_out as execution:
            if leads:
                keep(path, self.hosting, self.world)
            if self.loud and resuming:
                self._print_changed_processes(wanted, Folder(path))
            if self.loud:
                self._print_plan(execution)
            execution.train()
        if self.loud and not title:
            self.console.print(tables.run(execution.folder))
            self.console.print(f"Records: {path}")

    def train_unless_ended(self, wanted: Run, path: Path, title: str) -> None:
        begun = (path / "run.json").is_file()
        if not begun or Folder(path).summary() is None:
            self.train(wanted, path, resuming=begun, title=title)

    def _print_changed_processes(self, wanted: Run, folder: Folder) -> None:
        before = folder.environment().get("processes", self.world.size)
        if wanted.reduction != "ordered" and before != self.world.size:
            self.console.print(
                f"Processes: {before} before, {self.world.size} now. Sums are taken in another "
                "order, so the result will differ in its last bits from that of an uninterrupted "
                "run (with --reduction ordered it would not)."
            )

    def _print_plan(self, execution: Execution) -> None:
        assembly = execution.assembly
        layout = assembly.workers.layout
        self.console.print(preview(assembly.plan, layout=layout, processes=self.world.size))


@contextmanager
def _here(wanted: Run, hosting: Hosting) -> Generator[Host]:
    device = pick_device(wanted.device)
    with (
        joined(device.type, timeout_seconds=60 * hosting.timeout_minutes) as world,
        Heartbeat(world, hosting.heartbeat_seconds) as heartbeat,
    ):
        task = _task(wanted, hosting, world.local_rank)
        host = Host(world, hosting, heartbeat, task, Console())
        if host.loud and not world.on_one_machine:
            host.console.print(TRUST)
        yield host


def _now() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _same_on_all(out: Path, chosen_here: bool) -> Path:
    """Rank 0's choice of a folder, if each process has chosen one by its own clock."""
    if not chosen_here or not dist.is_initialized():
        return out
    return Path(os.fsdecode(gather_bytes(os.fsencode(out))[0]))


def _check_comparison(out: Path, runs: dict[str, Run]) -> None:
    """Refuses a folder that can't be written, or that has runs of another comparison."""
    check_place(out)
    for name, wanted in runs.items():
        path = out / name
        if (path / "run.json").is_file() and Folder(path).run != wanted:
            raise UserError(
                f"{path} holds a run with other settings; give another folder with --out, "
                "or the settings that it was begun with"
            )


def report(out: Path, folders: Sequence[Folder], console: Console) -> None:
    """The table and the pictures of a comparison."""
    console.print(tables.comparison(folders))
    console.print(pictures.text(folders))
    pictures.comparison(folders, out / "comparison.png")
    console.print(f"Picture: {out / 'comparison.png'}")
