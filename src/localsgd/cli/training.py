"""The commands `run` and `resume`: executed here, or by processes started here."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from localsgd.averaging.topology import check_hosting
from localsgd.basics.console import Console
from localsgd.basics.files import check_no_link, expanded
from localsgd.basics.starting import TOO_EARLY
from localsgd.cli.last_launch import as_before, keep, not_told, processes_of
from localsgd.cli.options import (
    Hosting,
    ResumeCommand,
    RunCommand,
    hosting_arguments,
)
from localsgd.errors import DIVERGED_EXIT, Diverged, UserError
from localsgd.logs.choice import loggers_of, names_of
from localsgd.results.grouping import is_diverged
from localsgd.show import tables
from localsgd.show.preview import preview
from localsgd.train.config.blame import naming_parts
from localsgd.train.config.complete import complete_run
from localsgd.train.config.parts import changed_plugins, going_on
from localsgd.train.config.run import Run, to_json
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.engine import trunk
from localsgd.train.engine.assembly import pick_device
from localsgd.train.engine.execution import Execution, Interrupted, prepare
from localsgd.train.engine.observer import Observers
from localsgd.train.engine.run_folder import Folder, locked
from localsgd.train.launch import (
    Heartbeat,
    World,
    check_same,
    find_world,
    gather_bytes,
    is_launched,
    joined,
    launch,
    print_exit_message,
)
from localsgd.train.runs.live import Live
from localsgd.train.runs.opened import Beating, opened

TRUNKS = ".trunks"
"""Folder of the first phases that runs share, beside theirs."""
SAME = "the same command"
"""What goes on with several runs."""
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
    hosting = without_auto(command.hosting, [completed])

    def arguments(config: Path) -> list[str]:
        return ["run", f"--config={config}", f"--out={out}"]

    def stopped() -> str:
        return interrupted([out], going_on(completed, out))

    if starts_processes(hosting, [completed]):
        return start(hosting, completed, arguments, stopped) or verdict([out])
    with stopping(stopped), here(completed, hosting) as host:
        out = _same_on_all(out, command.out is None)
        host.train(completed, out, resuming=False)
    return verdict([out])


def interrupted(paths: Iterable[Path], again: str) -> str:
    """What to say of a command that was interrupted, whose runs lie in `paths`.

    Args:
        again: what goes on with them.
    """
    begun = any((path / "run.json").is_file() for path in paths)
    return f"interrupted; go on with: {again}" if begun else TOO_EARLY


@contextmanager
def stopping(stopped: Callable[[], str]) -> Generator[None]:
    """Ctrl-C between the steps of training says how to go on, too."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(stopped()) from None


def resume(command: ResumeCommand) -> int:
    """Continues one run, hosted as it was last unless the command says otherwise."""
    folder = Folder.open(command.folder)
    wanted = folder.run
    changed = changed_plugins(wanted)
    if leads():
        Console(quiet=command.hosting.quiet).print(*changed, sep="\n", end="\n" if changed else "")
    complete(wanted)  # refuses an impossible run before anything starts
    hosting = as_before(command.folder, command.hosting)
    hosting.check()
    unsaid = not_told(command.folder, command.hosting)
    if unsaid and leads():
        Console(quiet=hosting.quiet).print(unsaid, soft_wrap=True)
    if folder.summary() is not None:
        again = going_on(wanted, command.folder, "show")
        raise UserError(f"{command.folder} has ended; see `{again}`")
    if hosting.processes == "auto":  # as many as it had, so that the bits stay the same
        hosting = replace(hosting, processes=processes_of(folder))

    def stopped() -> str:
        return interrupted([command.folder], going_on(wanted, command.folder))

    if starts_processes(hosting, [wanted]):
        with locked(command.folder):  # one error message, before any process starts
            pass
        status = start(hosting, wanted, lambda _: ["resume", str(command.folder)], stopped)
        return status or verdict([command.folder])
    with stopping(stopped), here(wanted, hosting) as host:
        host.train(wanted, command.folder, resuming=True)
    return verdict([command.folder])


def leads() -> bool:
    """Whether this process, of all of a command, is the one that reports."""
    return find_world().rank == 0 and not is_launched()


def verdict(paths: Sequence[Path]) -> int:
    """The exit status 0, unless a run has diverged.

    A process started by a launcher always returns 0: its launcher looks at the runs.

    Raises:
        Diverged: names the runs that have.
    """
    if is_launched():
        return 0
    ended = {path: Folder(path).summary() for path in paths}
    found = [str(path) for path, summary in ended.items() if summary and is_diverged(summary)]
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
        init = str(expanded(init).absolute())
    kind, _, path = partition.partition(":")
    if kind == "column" and path:
        partition = f"column:{expanded(path).absolute()}"
    given = msgspec.structs.replace(wanted, init=init, partition=partition)
    return complete_run(given, tasks.card(given.task))


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


def without_auto(hosting: Hosting, runs: Sequence[Run]) -> Hosting:
    """`hosting` with the number that `--processes auto` chooses, which is printed."""
    if hosting.processes != "auto":
        return hosting
    _check_alone("processes auto")
    from localsgd.cli.process_count import choose_processes

    choice = choose_processes(runs, task_of(runs[0], hosting))
    Console(quiet=hosting.quiet).print(str(choice))
    return replace(hosting, processes=choice.processes)


def _quickest(wanted: Run, hosting: Hosting) -> Run:
    _check_alone("quickest")
    from localsgd.cli.process_count import quickest

    return quickest(wanted, task_of(wanted, hosting), Console(quiet=hosting.quiet))


def task_of(wanted: Run, hosting: Hosting, local_rank: int = 0) -> Task:
    """The run's data, on this process's device."""
    device = pick_device(wanted.device, local_rank)
    with naming_parts(wanted):
        task = tasks.load(wanted.task, hosting.data_dir, device=device)
        return task if wanted.train_samples is None else task.subset(wanted.train_samples)


def start(
    hosting: Hosting,
    wanted: Run,
    arguments: Callable[[Path], Sequence[str]],
    stopped: Callable[[], str],
) -> int:
    with tempfile.TemporaryDirectory(prefix="localsgd-") as folder:
        config = Path(folder) / "run.json"
        config.write_bytes(to_json(wanted))
        command = [*arguments(config), *hosting_arguments(hosting)]
        assert isinstance(hosting.processes, int), "auto has been replaced by a number"
        status = launch(command, hosting.processes)
    if status > 128:
        print_exit_message(f"localsgd: {stopped()}")
    return status


@dataclass
class Host:
    """This process, which trains its workers of one run after another."""

    world: World
    hosting: Hosting
    heartbeat: Heartbeat
    console: Console
    _tasks: dict[tuple[str, int | None, str], Task] = field(default_factory=dict, init=False)

    @property
    def loud(self) -> bool:
        return self.world.rank == 0 and not self.hosting.quiet

    def train(
        self,
        wanted: Run,
        path: Path,
        *,
        resuming: bool,
        title: str = "",
        trunks: Path | None = None,
    ) -> None:
        """Trains `wanted` to its end.

        Args:
            resuming: goes on with the run in `path`.
            title: in front of what it prints; a run without one ends with its table.
            trunks: folder of the first phases that runs share; each trains its own if not given.
        """
        hosting, leads = self.hosting, self.world.rank == 0
        check_same("logging", f"log={hosting.log}")
        loggers = loggers_of(hosting.log, path) if leads else []
        live = Live(self.console, quiet=not self.loud, title=title)
        carried_out = opened(
            wanted,
            self.task_of(wanted),
            path,
            Observers(live, *loggers),
            world=self.world,
            heartbeat=self.heartbeat,
            resuming=resuming,
            timeout=timedelta(minutes=hosting.timeout_minutes),
            checkpoint_every=hosting.checkpoint_every,
            watch=hosting.watch,
            by_worker=names_of(hosting.log) != [],
        )
        with ExitStack() as held, live, carried_out as execution:
            if leads:
                keep(path, self.hosting, self.world)
            if self.loud and resuming:
                self._print_changed_processes(wanted, Folder(path))
            if self.loud and trunks is None:
                self._print_plan(execution)
            if trunks is not None and execution.assembly.workers.step == 0:
                self._start_from(trunks, execution, live)
            for logger in loggers:
                held.callback(logger.close)
            execution.train()
        if self.loud and not title:
            self.console.print(tables.run(execution.folder))
            self.console.print(f"Records: {path}")

    def _start_from(self, trunks: Path, execution: Execution, live: Live) -> None:
        check_no_link(trunks)
        trunk.start(
            execution,
            trunks,
            observer=Observers(Beating(self.heartbeat), live),
            prepare=self._prepared,
            waiting=self.heartbeat.waiting,
        )

    def _prepared(self, *given: Any, **named: Any) -> Execution:
        with self.heartbeat.waiting():
            return prepare(
                *given,
                local_rank=self.world.local_rank,
                timeout=timedelta(minutes=self.hosting.timeout_minutes),
                waiting=self.heartbeat.waiting,
                **named,
            )

    def train_unless_ended(self, wanted: Run, path: Path, title: str, trunks: Path) -> None:
        begun = (path / "run.json").is_file()
        if not begun or Folder(path).summary() is None:
            try:
                self.train(wanted, path, resuming=begun, title=title, trunks=trunks)
            except Interrupted:
                raise Interrupted(f"interrupted; go on with: {SAME}") from None

    def task_of(self, wanted: Run) -> Task:
        """The run's data, which is read once for all runs of the same."""
        key = wanted.task, wanted.train_samples, wanted.device
        if key not in self._tasks:
            self._tasks[key] = task_of(wanted, self.hosting, self.world.local_rank)
        return self._tasks[key]

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
        self.console.print(
            preview(
                assembly.plan,
                layout=layout,
                processes=self.world.size,
                by_worker=execution.by_worker,
            )
        )


@contextmanager
def here(wanted: Run, hosting: Hosting) -> Generator[Host]:
    device = pick_device(wanted.device)
    with (
        joined(device.type, timeout_seconds=60 * hosting.timeout_minutes) as world,
        Heartbeat(world, hosting.heartbeat_seconds) as heartbeat,
    ):
        host = Host(world, hosting, heartbeat, Console())
        host.task_of(wanted)  # refused here if it isn't there
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
