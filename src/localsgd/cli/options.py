"""What the commands take.

A `Run` says what is trained; the rest says where and how it is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from localsgd.errors import UserError
from localsgd.train.config.run import Run

Settings = Annotated[Run, arg(name="")]


@dataclass(frozen=True)
class Hosting:
    """Where the workers live and how the run is kept alive; no result depends on it."""

    processes: int | Literal["auto"] | None = None
    """Processes to start on this machine; one where not given, and none under torchrun or srun.
    auto measures a step and takes what is quickest."""
    data_dir: Path | None = None
    """Where the data lies; LOCALSGD_DATA, else the user's cache, where not given."""
    checkpoint_every: int = 1
    """Evaluations from one checkpoint to the next."""
    heartbeat_seconds: float = 30.0
    """The others stop within this time when a process dies or hangs."""
    timeout_minutes: float = 120.0
    """Limit of one collective; must outlast the slowest round."""
    watch: str = ""
    """Measured meanwhile, into watched.jsonl: lambda_max[:EPOCHS[:SAMPLES]], drift[:ROUNDS] and
    noise[:EPOCHS[:SAMPLES]], with commas between."""
    quiet: bool = False
    """Print nothing but errors."""

    @property
    def data_place(self) -> Path | None:
        """`data_dir` as others find it, whatever folder they are started in."""
        return None if self.data_dir is None else self.data_dir.expanduser().resolve()

    def check(self) -> None:
        """Refuses numbers that cannot be."""
        for name, least in (("processes", 1), ("checkpoint_every", 1)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise UserError(f"--{name.replace('_', '-')} {value} cannot be; give 1 or more")
        for name in ("heartbeat_seconds", "timeout_minutes"):
            value = getattr(self, name)
            if not 0 < value < 1e6:
                raise UserError(
                    f"--{name.replace('_', '-')} {value:g} cannot be; give more than 0, and less "
                    "than a million"
                )
        if self.watch:
            from localsgd.train.engine.watching import watch

            watch(self.watch, Path())


@dataclass(frozen=True)
class ResumeHosting:
    """As the run had it last, where nothing is said."""

    processes: int | Literal["auto"] | None = None
    """Processes to start on this machine; as many as a command started there before where not
    given, and none under torchrun or srun. auto is as many as the run began with, wherever."""
    data_dir: Path | None = None
    """Where the data lies; where it lay before, where not given."""
    checkpoint_every: int | None = None
    """Evaluations from one checkpoint to the next; as before where not given."""
    heartbeat_seconds: float | None = None
    """The others stop within this time when a process dies or hangs; as before where not given."""
    timeout_minutes: float | None = None
    """Limit of one collective; as before where not given."""
    watch: str = ""
    """Measured meanwhile; as before where not given."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class RunCommand:
    """Train one run; its records go into a folder of their own."""

    run: Settings = field(default_factory=Run)
    hosting: Annotated[Hosting, arg(name="")] = field(default_factory=Hosting)
    config: Path | None = None
    """A run as JSON, such as the run.json of another; settings beside it go on top."""
    quickest: bool = False
    """Measure channels_last and bfloat16 before it starts, and take what is faster here."""
    out: Path | None = None
    """The new folder; runs/TASK-METHOD-TIME where not given."""


@dataclass(frozen=True)
class CompareCommand:
    """Train several methods on equal terms; ends in a table and a picture.

    Flat methods get all K workers in one level and H = the product of local_steps, hierarchical
    ones the topology and local_steps as they are. The same command goes on where it was cut off.
    """

    run: Settings = field(default_factory=Run)
    hosting: Annotated[Hosting, arg(name="")] = field(default_factory=Hosting)
    methods: tuple[str, ...] = ("mini-batch", "local", "post-local")
    """Which methods."""
    seeds: tuple[int, ...] = ()
    """A run for each; the run's own seed where not given."""
    config: Path | None = None
    """A run as JSON to start from."""
    out: Path = Path("runs/compare")
    """The folder of the runs' folders, the table and the picture."""


@dataclass(frozen=True)
class ResumeCommand:
    """Go on with a run that was cut off, from its last checkpoint, to the same bits."""

    folder: Positional[Path]
    """The run's folder."""
    hosting: Annotated[ResumeHosting, arg(name="")] = field(default_factory=ResumeHosting)


@dataclass(frozen=True)
class ShowCommand:
    """Show runs: configuration, result, traffic. Several are compared."""

    folders: Positional[tuple[Path, ...]]
    """Folders of runs."""
    figure: Path | None = None
    """Draw a picture into this PNG, SVG or PDF file too."""


Shape = Literal[
    "eigenvalues", "trace", "density", "sharpness", "curves", "surface", "noise", "line", "plane",
    "watched",
]  # fmt: skip


@dataclass(frozen=True)
class ReproduceCommand:
    """Reproduce the paper's tables and figures by name; what is done already is not done again.

    Prints tables beside the paper's numbers and what became of its claims, and writes pictures.
    Interrupted, the same command goes on.
    """

    names: Positional[tuple[str, ...]] = ()
    """The paper's labels, such as tab:improve_sign_sgd, or short names, such as signs."""
    all: bool = False
    """All there are."""
    list: bool = False
    """List them: what is done at every scale, and what it costs here."""
    show: bool = False
    """Only show what the paper has under these names."""
    scale: Literal["smoke", "small", "medium", "paper"] = "small"
    """smoke takes seconds a name, small minutes on a CPU, paper is the paper's own size."""
    seeds: int | None = None
    """Runs of every arm; the scale's number where not given."""
    tune: bool = False
    """Tune learning rates of baselines where a study can; always at the paper's own size."""
    shard: str = "1/1"
    """I/N does the I-th of N shares of the work, such as $SLURM_ARRAY_TASK_ID/16."""
    processes: int | None = None
    """Runs at a time, a core each; as many as there are cores where not given."""
    data_dir: Path | None = None
    """Where the data lies; LOCALSGD_DATA, else the user's cache, where not given."""
    out: Path | None = None
    """Where records are kept; experiments/results/reproduce where not given."""
    work: Path | None = None
    """For pictures, and for what interrupted runs go on from; runs/reproduce where not given."""
    checkout: Path | None = None
    """The repository whose experiments/ is executed; the one that this command was installed from
    where not given."""


@dataclass(frozen=True)
class ReportCommand:
    """Write what came out of all of it as one web page: claims, tables beside the paper's, figures.

    It needs no network, and says of every number which runs are behind it. Runs nothing.
    """

    scale: Literal["smoke", "small", "medium", "paper"] = "small"
    """Whose records are reported."""
    out: Path = Path("report.html")
    """The page."""
    markdown: Path | None = None
    """The same as Markdown, with its figures in a folder beside it."""
    records: Path | None = None
    """Where records are kept; experiments/results/reproduce where not given."""
    tune: bool = False
    """Show baselines with tuned learning rates (reproduce --tune), where those are known."""
    checkout: Path | None = None
    """The repository whose experiments/ is executed; the one that this command was installed from
    where not given."""


@dataclass(frozen=True)
class LandscapeCommand:
    """Measure how flat the loss is around the models of runs that have ended, and between them.

    Curvature, sharpness and lines between models, as in section 5.1 of the paper. Records go into
    landscape.jsonl beside the figures: into the folder landscape of the run, or beside several.
    """

    folders: Positional[tuple[Path, ...]]
    """Folders of runs of one task and network."""
    what: tuple[Shape, ...] = ("eigenvalues", "trace", "density", "curves", "line", "watched")
    """What is measured. A line goes through every two runs, a plane through every three; watched is
    what `localsgd run --watch` kept."""
    data: tuple[Literal["train", "test"], ...] = ("train", "test")
    """On which samples."""
    samples: int = 2000
    """At most so many of each, drawn by the seed; 0 for all."""
    top: int = 10
    """The largest eigenvalues: how many."""
    bottom: int = 0
    """The smallest ones: how many."""
    curvature: Literal["hessian", "gauss-newton", "fisher"] = "hessian"
    """Of which matrix."""
    method: Literal["lanczos", "power"] = "lanczos"
    """How; power iteration is the paper's, and takes many times as long."""
    directions: int = 10
    """Random directions, scaled filter by filter, that all models share."""
    points: int = 21
    """Of a curve, a line, a side of a surface or plane."""
    statistics: Literal["kept", "estimated"] = "kept"
    """Of batch norm: the models' own (between models: interpolated), or measured on the training
    samples, augmented as in training, at every point of a line. On planes they are always
    measured."""
    batch: int = 500
    """Samples of a batch; it changes results through estimated statistics alone."""
    out: Path | None = None
    """Where records and figures go."""
    data_dir: Path | None = None
    """Where the data lies."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seed: int = 0
    """Of directions, start vectors and the choice of samples."""
    quiet: bool = False
    """Print nothing but errors."""

    def check(self) -> None:
        """Refuses numbers that cannot be."""
        limits = {"samples": 0, "top": 0, "bottom": 0, "directions": 1, "points": 2, "batch": 1}
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise UserError(f"--{name} {getattr(self, name)} cannot be; give {least} or more")
        if not self.what or not self.data:
            raise UserError("nothing is to be measured; name something by --what and --data")


@dataclass(frozen=True)
class TasksCommand:
    """List tasks, models and methods."""

    data_dir: Path | None = None
    """Where the data lies."""


@dataclass(frozen=True)
class PlanCommand:
    """Say how many local steps hide the network, which torchrun lets it measure."""

    topology: str = "4"
    """Blocks of workers, such as 16, 8x2 or 1000x8x4, one worker a process where links are
    measured."""
    task: str = "digits"
    """Its data gives the steps that are timed."""
    model: str | None = None
    """The task's own where not given."""
    batch: int = 32
    """Samples of a local step."""
    step_seconds: float | None = None
    """Compute of a local step; measured where not given."""
    scalars: float | None = None
    """Of the model; counted where not given."""
    rates: tuple[float, ...] = ()
    """Bits a second of each level's links, innermost first; measured where not given."""
    latencies: tuple[float, ...] = ()
    """Seconds that a message takes there however short it is; 0 where rates alone are given."""
    algorithm: str = "ring"
    """Of the all-reduce: ring, tree or recursive halving."""
    inner: tuple[int, ...] = ()
    """H of the levels within the outermost, innermost first; 1 where not given."""
    spread: float = 0.0
    """Standard deviation of a step's compute between workers, as a share of it: stragglers."""
    coding_seconds: float = 0.0
    """Of encoding and decoding a compressed model, at each sync of the outermost level."""
    waiting: float = 0.05
    """Of the time that may be spent waiting."""
    data_dir: Path | None = None
    """Where the data lies."""
    figure: Path | None = None
    """Draw time a sample against H into this file too."""


Command = (
    Annotated[RunCommand, tyro.conf.subcommand("run")]
    | Annotated[CompareCommand, tyro.conf.subcommand("compare")]
    | Annotated[ResumeCommand, tyro.conf.subcommand("resume")]
    | Annotated[ShowCommand, tyro.conf.subcommand("show")]
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
    if hosting.quiet:
        arguments.append("--quiet")
    return arguments
