"""The options of every command.

A `Run` says what is trained; the rest says where and how it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from localsgd.basics.files import expanded
from localsgd.errors import UserError
from localsgd.train.config.run import Run

Settings = Annotated[Run, arg(name="")]
Use = tyro.conf.UseAppendAction[tuple[str, ...]]
"""Modules with parts from other packages: `--use my_package --use other_package`."""


@dataclass(frozen=True)
class Hosting:
    """Processes, data folder, checkpoints and limits of a run; no result depends on them."""

    processes: int | Literal["auto"] | None = None
    """Processes to start on this machine: one if not given. Leave it out under torchrun or srun.
    auto measures a step and takes the fastest number."""
    data_dir: Path | None = None
    """Folder of the data; LOCALSGD_DATA or else the user's cache if not given."""
    checkpoint_every: int = 1
    """Evaluations from one checkpoint to the next."""
    heartbeat_seconds: float = 30.0
    """Seconds within which all processes stop after one has died or hangs."""
    timeout_minutes: float = 120.0
    """Time limit of one collective; it must be longer than the slowest round."""
    watch: str = ""
    """What to measure during training, into watched.jsonl: lambda_max[:EPOCHS[:SAMPLES]],
    drift[:ROUNDS] and noise[:EPOCHS[:SAMPLES]], separated by commas."""
    log: str = ""
    """Where to log to: tensorboard, wandb, mlflow or jsonl, or several separated by commas."""
    quiet: bool = False
    """Print nothing but errors."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""

    @property
    def data_place(self) -> Path | None:
        """`data_dir` as an absolute path, which holds in every process."""
        return None if self.data_dir is None else expanded(self.data_dir).resolve()

    def check(self) -> None:
        """Refuses numbers that are out of range, and a data folder that is no path."""
        _ = self.data_place
        for name, least in (("processes", 1), ("checkpoint_every", 1)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise UserError(f"--{name.replace('_', '-')} {value} is too small; give 1 or more")
        for name in ("heartbeat_seconds", "timeout_minutes"):
            value = getattr(self, name)
            if not 0 < value < 1e6:
                raise UserError(
                    f"--{name.replace('_', '-')} {value:g} is out of range; give more than 0 and "
                    "less than a million"
                )
        if self.watch:
            from localsgd.train.engine.watching import watch

            watch(self.watch, Path())
        if self.log:
            from localsgd.logs.choice import names_of

            names_of(self.log)


@dataclass(frozen=True)
class ResumeHosting:
    """The settings of `Hosting`; those that are not given stay as they were."""

    processes: int | Literal["auto"] | None = None
    """Processes to start on this machine: as many as last time if not given. Leave it out under
    torchrun or srun. auto is as many as the run began with, on any machine."""
    data_dir: Path | None = None
    """Folder of the data; as before if not given."""
    checkpoint_every: int | None = None
    """Evaluations from one checkpoint to the next; as before if not given."""
    heartbeat_seconds: float | None = None
    """Seconds within which all processes stop after one has died or hangs; as before if not
    given."""
    timeout_minutes: float | None = None
    """Time limit of one collective; as before if not given."""
    watch: str = ""
    """What to measure during training; as before if not given."""
    log: str | None = None
    """Where to log to; if not given, into the run's folder as before, but not to wandb or mlflow;
    "" for nowhere."""
    quiet: bool = False
    """Print nothing but errors."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""


@dataclass(frozen=True)
class RunCommand:
    """Train one run; its records go into a folder of their own."""

    run: Settings = field(default_factory=Run)
    hosting: Annotated[Hosting, arg(name="")] = field(default_factory=Hosting)
    config: Path | None = None
    """A run as JSON, such as the run.json of another run; other options override it."""
    quickest: bool = False
    """Time channels_last and bfloat16 before the run, and use what is faster on this machine."""
    out: Path | None = None
    """The new folder; runs/TASK-METHOD-TIME if not given."""
    fault_tolerant: Annotated[bool, arg(help_behavior_hint="(another command)")] = False
    """Start workers of a script of your own in place of a run, and start those again that die; see
    `localsgd run --fault-tolerant --help`."""


@dataclass(frozen=True)
class CompareCommand:
    """Train several methods on equal terms, and compare them in a table and a picture.

    Flat methods get all K workers in one level and H = the product of local_steps; hierarchical
    ones get the topology and local_steps as they are. After an interruption the same command
    continues.
    """

    run: Settings = field(default_factory=Run)
    hosting: Annotated[Hosting, arg(name="")] = field(default_factory=Hosting)
    methods: tuple[str, ...] = ("mini-batch", "local", "post-local")
    """The methods to compare; `localsgd tasks` lists them."""
    vary: tuple[str, ...] = ()
    """Settings to vary with each method: lr=0.1,0.2 batch=32,64 is a grid, lr/batch=0.1/32,0.2/64
    a list."""
    seeds: tuple[str, ...] = ()
    """One run of each method per seed, such as 0..4 or 0 1 2; the run's own seed if not given."""
    config: Path | None = None
    """A run as JSON to start from."""
    out: Path = Path("runs/compare")
    """The folder for the runs' folders, the table and the picture."""


@dataclass(frozen=True)
class SweepCommand:
    """Vary settings of a run over seeds, and compare the results with a baseline in a table.

    Finished runs are not run again, and after an interruption the same command continues. Runs that
    share a first phase train it once.
    """

    run: Settings = field(default_factory=Run)
    hosting: Annotated[Hosting, arg(name="")] = field(default_factory=Hosting)
    vary: tuple[str, ...] = ()
    """Settings to vary: local_steps=1,4,16 lr=0.1,0.2 is a grid, local_steps/lr=1/0.1,16/0.2 a
    list. Values are written as on the command line, such as "local_steps=2 8,4 4"."""
    seeds: tuple[str, ...] = ("0..2",)
    """Seeds of every configuration, such as 0..4 or 0 1 2."""
    baseline: str | None = None
    """What differences are to, such as local_steps=1; the first value of the first setting if not
    given. Each configuration is compared with the one that has its own other settings."""
    shard: str = "1/1"
    """I/N trains the I-th of N parts of the runs, such as $SLURM_ARRAY_TASK_ID/16."""
    forecast: bool = False
    """Only list the runs and say how long they will take."""
    config: Path | None = None
    """A run as JSON to start from."""
    out: Path = Path("runs/sweep")
    """The folder for the runs' folders and the pictures."""


@dataclass(frozen=True)
class ExportCommand:
    """Write results of runs to files, for tables and programs of one's own.

    CSV and Parquet are in long form, a line for each run and evaluation. Markdown and LaTeX have a
    line for each configuration, with mean, deviation and the paired difference to the baseline.
    """

    folders: Positional[tuple[Path, ...]]
    """Folders of runs, or of a sweep or a comparison."""
    csv: Path | None = None
    """Write CSV to this file."""
    parquet: Path | None = None
    """Write Parquet to this file; needs pyarrow."""
    latex: Path | None = None
    """Write LaTeX with booktabs to this file."""
    markdown: Path | None = None
    """Write Markdown to this file."""
    by: Literal["configuration", "evaluation"] | None = None
    """A line for each configuration or for each evaluation, in all files."""
    baseline: str | None = None
    """What differences are to, such as local_steps=1; there are none if not given."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""


@dataclass(frozen=True)
class ResumeCommand:
    """Continue an interrupted run from its last checkpoint, with the same bits as a result."""

    folder: Positional[Path]
    """The run's folder."""
    hosting: Annotated[ResumeHosting, arg(name="")] = field(default_factory=ResumeHosting)


@dataclass(frozen=True)
class ShowCommand:
    """Show runs: configuration, result and traffic. Several runs are compared."""

    folders: Positional[tuple[Path, ...]]
    """Folders of runs, or of a sweep or a comparison."""
    figure: Path | None = None
    """Also draw a picture into this PNG, SVG or PDF file."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""


Shape = Literal[
    "eigenvalues", "trace", "density", "sharpness", "curves", "surface", "noise", "line", "plane",
    "watched",
]  # fmt: skip


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce the paper's tables and figures by name; finished runs are not run again.

    Prints tables beside the paper's numbers and a verdict on each of its claims, and writes
    pictures. After an interruption the same command continues.
    """

    names: Positional[tuple[str, ...]] = ()
    """The paper's labels, such as tab:improve_sign_sgd, or short names, such as signs."""
    all: bool = False
    """Reproduce all tables and figures."""
    list: bool = False
    """List the names, how much of each is done at every scale, and how long it takes here."""
    show: bool = False
    """Only show what the paper has under these names."""
    scale: Literal["smoke", "small", "medium", "paper"] = "small"
    """smoke takes seconds a name, small minutes on a CPU, paper is the paper's own size."""
    seeds: int | None = None
    """Runs of every configuration; the scale's number if not given."""
    tune: bool = False
    """Tune the baselines' learning rates if the study supports it; at paper scale always on."""
    shard: str = "1/1"
    """I/N runs the I-th of N parts of the work, such as $SLURM_ARRAY_TASK_ID/16."""
    processes: int | None = None
    """Runs at a time, one core each; the number of cores if not given."""
    data_dir: Path | None = None
    """Folder of the data; LOCALSGD_DATA or else the user's cache if not given."""
    out: Path | None = None
    """Folder of the records; experiments/results/reproduce if not given."""
    work: Path | None = None
    """Folder for pictures and for the state of interrupted runs; runs/reproduce if not given."""
    checkout: Path | None = None
    """The repository whose experiments/ is run; the one this command was installed from if not
    given."""


@dataclass(frozen=True)
class ReportCommand:
    """Write all reproduced results as one web page: claims, tables beside the paper's, figures.

    The page needs no network and names the runs behind every number. The command trains nothing.
    """

    scale: Literal["smoke", "small", "medium", "paper"] = "small"
    """The scale whose records are reported."""
    out: Path = Path("report.html")
    """The page's file."""
    markdown: Path | None = None
    """Also write the report as Markdown, with its figures in a folder beside it."""
    records: Path | None = None
    """Folder of the records; experiments/results/reproduce if not given."""
    tune: bool = False
    """Show baselines with tuned learning rates (reproduce --tune), if those are known."""
    checkout: Path | None = None
    """The repository whose experiments/ is run; the one this command was installed from if not
    given."""


@dataclass(frozen=True)
class LandscapeCommand:
    """Measure how flat the loss is around the models of finished runs, and between them.

    Curvature, sharpness and lines between models, as in section 5.1 of the paper. Records
    (landscape.jsonl) and figures go into the folder landscape, inside a single run's folder or
    beside the folders of several.
    """

    folders: Positional[tuple[Path, ...]]
    """Folders of runs of one task and network."""
    what: tuple[Shape, ...] = ("eigenvalues", "trace", "density", "curves", "line", "watched")
    """What to measure. There is a line through every two runs and a plane through every three;
    watched shows what `localsgd run --watch` recorded."""
    data: tuple[Literal["train", "test"], ...] = ("train", "test")
    """The samples to measure on."""
    samples: int = 2000
    """The most samples of each kind, drawn by the seed; 0 for all."""
    top: int = 10
    """Number of largest eigenvalues."""
    bottom: int = 0
    """Number of smallest eigenvalues."""
    curvature: Literal["hessian", "gauss-newton", "fisher"] = "hessian"
    """The matrix whose eigenvalues, trace and density are measured."""
    method: Literal["lanczos", "power"] = "lanczos"
    """How eigenvalues are found; power iteration is the paper's, and many times slower."""
    directions: int = 10
    """Number of random directions, scaled filter by filter; all models get the same ones."""
    points: int = 21
    """Points of a curve or line, and of each side of a surface or plane."""
    statistics: Literal["kept", "estimated"] = "kept"
    """Of batch norm: the models' own (between models: interpolated), or measured on the training
    samples, augmented as in training, at every point of a line. On planes they are always
    measured."""
    batch: int = 500
    """Samples of a batch; it affects only results with estimated statistics."""
    out: Path | None = None
    """Folder for records and figures."""
    data_dir: Path | None = None
    """Folder of the data; LOCALSGD_DATA or else the user's cache if not given."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seed: int = 0
    """Seed of directions, start vectors and the choice of samples."""
    quiet: bool = False
    """Print nothing but errors."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""

    def check(self) -> None:
        """Refuses numbers that are out of range."""
        limits = {"samples": 0, "top": 0, "bottom": 0, "directions": 1, "points": 2, "batch": 1}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UserError(
                    f"--{name} {getattr(self, name)} is too small; give {least} or more"
                )
        if not self.what or not self.data:
            raise UserError("there is nothing to measure; name something with --what and --data")


@dataclass(frozen=True)
class TasksCommand:
    """List tasks, models and methods."""

    data_dir: Path | None = None
    """Folder of the data; LOCALSGD_DATA or else the user's cache if not given."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""


@dataclass(frozen=True)
class PlanCommand:
    """Say how many local steps hide the network.

    Started by torchrun, it measures the links; otherwise give --rates.
    """

    topology: str = "4"
    """Blocks of workers, such as 16, 8x2 or 1000x8x4; one worker per process if links are
    measured."""
    task: str = "digits"
    """The task whose steps are timed."""
    model: str | None = None
    """The network; the task's usual one if not given."""
    batch: int = 32
    """Samples of a local step."""
    step_seconds: float | None = None
    """Compute time of a local step; measured if not given."""
    scalars: float | None = None
    """Scalars of the model; counted if not given."""
    rates: tuple[float, ...] = ()
    """Bits per second of each level's links, innermost first; measured if not given."""
    latencies: tuple[float, ...] = ()
    """Latency of each level's links in seconds; 0 if only rates are given."""
    algorithm: str = "ring"
    """Algorithm of the all-reduce: ring, tree or recursive halving."""
    inner: tuple[int, ...] = ()
    """H of the levels inside the outermost one, innermost first; 1 if not given."""
    spread: float = 0.0
    """Standard deviation of a step's compute time between workers, as a fraction of it."""
    coding_seconds: float = 0.0
    """Time to encode and decode a compressed model at each sync of the outermost level."""
    waiting: float = 0.05
    """The largest fraction of the time that may be spent waiting."""
    data_dir: Path | None = None
    """Folder of the data; LOCALSGD_DATA or else the user's cache if not given."""
    figure: Path | None = None
    """Also draw the time per sample against H into this file."""
    use: Use = ()
    """A module with tasks, models, schedules, compressors or outer optimizers of your own; may be
    given several times. Installed packages that declare theirs need not be named."""


Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run")]
    | Annotated[CompareCommand, tyro.conf.subcommand("compare")]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep")]
    | Annotated[ResumeCommand, tyro.conf.subcommand("resume")]
    | Annotated[ShowCommand, tyro.conf.subcommand("show")]
    | Annotated[ExportCommand, tyro.conf.subcommand("export")]
    | Annotated[LandscapeCommand, tyro.conf.subcommand("landscape")]
    | Annotated[TasksCommand, tyro.conf.subcommand("tasks")]
    | Annotated[PlanCommand, tyro.conf.subcommand("plan")]
    | Annotated[ReproduceCommand, tyro.conf.subcommand("reproduce")]
    | Annotated[ReportCommand, tyro.conf.subcommand("report")]
)


def hosting_arguments(hosting: Hosting) -> list[str]:
    """The arguments that give a process of the run the same hosting."""
    arguments = [
        f"--checkpoint-every={hosting.checkpoint_every}",
        f"--heartbeat-seconds={hosting.heartbeat_seconds}",
        f"--timeout-minutes={hosting.timeout_minutes}",
    ]
    if hosting.data_place is not None:
        arguments.append(f"--data-dir={hosting.data_place}")
    if hosting.watch:
        arguments.append(f"--watch={hosting.watch}")
    arguments.append(f"--log={hosting.log}")  # `resume` takes none as what was before
    if hosting.quiet:
        arguments.append("--quiet")
    arguments += [f"--use={module}" for module in hosting.use]
    return arguments
