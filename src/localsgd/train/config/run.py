"""A run as a value: everything that its result depends on, and nothing else.

Where a run writes, how many processes host its workers and where the data lies are not part of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from localsgd.averaging.topology import Topology
from localsgd.basics.refused import explained
from localsgd.errors import UserError
from localsgd.train.config.methods import method

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
MOST_BYTES = 1 << 20
"""Largest size of a run's JSON file."""
PRESETS: dict[str, Any] = {
    "compression": "none",
    "outer": "average",
    "inner_state": "",
    "fragments": 1,
    "delay": 0,
    "correction": 1.0,
    "lr_scaling": "linear",
    "lr_schedule": "steps",
    "optimizer": "sgd",
}
"""The settings that a method may choose, and their values if it does not."""
LATER: dict[str, Any] = {"neighbours": "all", "no_decay": "auto", "options": (), "plugins": ()}
"""Settings that are newer than the first run folders, which lack them: not written if usual."""


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run.

    Settings that are `None` take the task's or the paper's value in `complete_run`.
    """

    task: str = "digits"
    """The data set to train on; `localsgd tasks` lists them."""
    model: str | None = None
    """The network; the task's usual one if not given."""
    train_samples: Count | None = None
    """Train on a class-balanced subset of this size; all data if not given."""
    method: str = "post-local"
    """How workers synchronise; `localsgd tasks` lists the methods too."""
    workers: Count | None = None
    """K, the number of workers; the topology's if not given, 8 without one."""
    topology: str | None = None
    """Who averages with whom: 16, 8x2 (8 blocks of 2), 4x2x2, 2+3+3; flat if not given."""
    neighbours: Literal["all", "ring", "pairs"] = "all"
    """With whom a member of the outermost level averages: with all, with the two beside it on a
    ring, or with one that is drawn at every sync."""
    local_steps: tuple[Count, ...] | None = None
    """H for each level, innermost first: H, H^b, ...; 8 for a flat topology."""
    switch: str = "first-decay"
    """When post-local SGD leaves H = 1: first-decay, epoch:E, step:T or fraction:S of the run."""
    step_warmup: Positive | None = None
    """Epochs over which local-warmup raises H; H epochs if not given (the paper's choice)."""
    step_warmup_shape: Literal["linear", "exponential", "constant"] = "linear"
    """How H grows during local-warmup."""
    average: Literal["auto", "models", "gradients"] = "auto"
    """What is averaged while H = 1; auto is gradients if that is possible."""
    reduction: Literal["exact", "ordered"] = "exact"
    """Order of summation: the wire's (exact), or the workers' (ordered: the same bits for any
    number of processes)."""
    qsr_alpha: Positive | None = None
    """α of qsr, in units of the learning rate; 0.3 of its peak if not given."""
    adapt_every: Positive | None = None
    """Epochs between changes of H by adacomm, decreasing and plateau; 1 if not given."""
    waiting: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """The fraction of the time that method waiting lets workers wait."""
    compression: str | None = None
    """How the outermost level compresses updates, with error feedback except for sign and
    majority; the method's choice, or none, if not given."""
    sign_scales: Literal["tensor", "row"] | Count = "tensor"
    """How many scalars share a scale when signs are sent: each tensor, the whole row (the paper's
    text), or each chunk of this many scalars, a multiple of 8."""
    compression_way: Literal["auto", "gather", "two-phase"] = "auto"
    """How payloads travel: all to all (gather), or chunks to their owners and back (two-phase);
    auto chooses by size and K."""
    top_k_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01
    """The fraction of scalars that top-k sends."""
    power_sgd_rank: Count = 2
    """Rank of power-sgd."""
    outer: str | None = None
    """The outermost level's optimizer, applied to the mean update; the method's choice, or average,
    if not given."""
    outer_lr: Positive | None = None
    """Learning rate of the outer optimizer; its usual one, or 1, if not given."""
    outer_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Momentum of the outer optimizer; its usual one if not given."""
    inner_state: str | None = None
    """What outermost syncs do with the inner optimizer's state, by key: keep, average or reset,
    with an optional period: momentum_buffer=reset or exp_avg=average,exp_avg_sq=average:4."""
    fragments: Count | None = None
    """Number of parts of the model that the outermost level averages in turn."""
    delay: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)] | None = None
    """Syncs after which a mean is applied, while training continues; 0 to fragments."""
    correction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """How far a worker moves towards a delayed mean; 1, all the way, if not given."""
    partition: str = "reshuffled"
    """How samples are divided among workers: reshuffled every epoch (the paper), fixed, by-label,
    dirichlet:ALPHA, column:FILE."""
    exhausted: Literal["repeat", "leave"] = "repeat"
    """What workers with few samples do: read them again, or take fewer steps of a round, in
    proportion, and leave it early."""
    slowdown: tuple[Positive, ...] = ()
    """How many times longer each worker takes for a step; slow ones take fewer steps in a round."""
    weighting: Literal["equal", "samples", "fednova"] = "equal"
    """Weight of a worker's update in the mean: equal, by its samples, or by its samples with the
    update normalised by its steps (fednova)."""
    epochs: Positive | None = None
    """Length of the run, in passes over the training set by all workers together."""
    batch: Count | None = None
    """B: samples of a worker's mini-batch."""
    lr: Positive | None = None
    """Learning rate of a single worker with a batch of lr_batch."""
    lr_batch: Count | None = None
    """The batch that lr is meant for; with linear scaling the peak is lr K B / lr_batch."""
    lr_scaling: Literal["linear", "sqrt", "local", "local-sqrt", "none"] | None = None
    """How the rate grows with the batch: with the global batch (linear), its square root (sqrt),
    the local batch (local), its square root (local-sqrt), or not (none); the method's choice, or
    linear, if not given."""
    lr_warmup: NotNegative | None = None
    """Epochs over which the rate rises from lr to its peak; 5 in 300 if not given."""
    lr_decay_at: tuple[Share, ...] | None = None
    """Fractions of the run after which the rate is multiplied by lr_decay; the task's (usually 0.5
    and 0.75) if not given."""
    lr_decay: Share = 0.1
    """Factor of each decay of the learning rate."""
    lr_schedule: Literal["steps", "cosine", "cyclic"] | None = None
    """How the rate falls: by steps (the paper), a cosine, or a cosine with warm restarts."""
    lr_cycles: Count = 4
    """Cycles of a cyclic rate; the averaged model is saved at the end of each."""
    lr_floor: Share = 0.0
    """The rate at the end of a cosine, as a fraction of the peak."""
    optimizer: Literal["sgd", "adam", "adamw", "lars", "larc", "sign"] | None = None
    """Optimizer of the local steps; the method's choice, or sgd, if not given."""
    trust: Positive = 0.001
    """Trust coefficient of lars and larc."""
    clip: Positive | None = None
    """Largest norm of a worker's gradient; the task's, or none, if not given."""
    noise: NotNegative = 0.0
    """η of gradient noise of variance η / (1 + t)^γ; 0 for none."""
    noise_decay: NotNegative = 0.55
    """γ of gradient noise."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Local momentum of sgd, lars, larc and sign; the task's (usually 0.9) if not given."""
    nesterov: bool = True
    """Nesterov momentum, as in the paper."""
    weight_decay: NotNegative | None = None
    """Weight decay of all parameters but those of no_decay, and with lars and larc of none that are
    vectors; the task's if not given."""
    no_decay: Literal["auto", "usual", "batch-norm", "nothing"] = "auto"
    """Parameters without weight decay: biases, normalisation and embeddings (usual), batch norm
    (batch-norm, the paper), or nothing; auto is batch-norm for models of this package, usual for
    others."""
    batch_norm: Literal["mean", "recalibrated", "own"] = "mean"
    """Batch-norm statistics of the averaged model: the workers' mean, re-estimated on training
    data (recalibrated), or worker 0's (own)."""
    evaluate_local: Literal["end", "always", "never"] = "end"
    """When to evaluate every worker's own model too; with --log, end is always."""
    evaluate_every: Positive = 1.0
    """Epochs between evaluations."""
    init: str | None = None
    """A safetensors file with the starting weights, such as model.safetensors of another run."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of training; bfloat16 is autocast, with weights in float32."""
    channels_last: bool = False
    """Use the channels_last memory format for images and filters."""
    compile: bool = False
    """Compile the models with torch.compile."""
    batched: bool = False
    """Run forward and backward of all workers of a process in one batch. Equal to one by one up to
    rounding; faster for small models with small batches."""
    prefetch: bool | None = None
    """Prepare the next batch in a thread while this one trains. Batches stay the same. On for
    images in files if not given."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Seed of everything that is random."""
    options: tuple[str, ...] = ()
    """Options of parts from other packages, as NAME.OPTION=VALUE."""
    plugins: tuple[str, ...] = ()
    """The parts from other packages, each with the version that the run was begun with. It is
    filled in, says nothing of where code lies, and loads none."""

    def missing(self) -> list[str]:
        """The settings that `complete_run` would fill in."""
        names = ("model", "workers", "topology", "local_steps", "epochs", "batch", "lr", "lr_batch")
        others = ("momentum", "weight_decay", "lr_decay_at", "lr_warmup", "prefetch")
        return [
            name
            for name in (*PRESETS, *names, *others)
            if getattr(self, name) in (None, "")
            and (name != "inner_state" or self.inner_state is None)
        ]

    def opened(self) -> Run:
        """The run without its method's preset choices, so that another method can choose.

        A run that has not been completed is returned as it is: all its values were given.
        """
        own = method(self.method).preset
        chosen = {**PRESETS, **own}
        if any(getattr(self, name) is None for name in PRESETS):
            return self
        names = [name for name in (*PRESETS, "lr") if name in chosen]
        open_again = {name: None for name in names if getattr(self, name) == chosen[name]}
        if "local_steps" not in method(self.method).uses:  # nobody has asked for its 1
            open_again["local_steps"] = None
        return msgspec.structs.replace(self, **open_again)

    def parsed_topology(self) -> Topology:
        """The topology that `topology` and `workers` describe; 8 workers if both are left out."""
        if self.topology is None:
            return Topology.parse(self.workers or 8)
        topology = Topology.parse(self.topology)
        if self.workers not in (None, topology.workers):
            raise UserError(
                f"workers = {self.workers}, but topology {topology} has {topology.workers}; "
                "give one of them, or two that match"
            )
        return topology


def checked(run: Run) -> Run:
    """Refuses values outside their range, and names the option."""
    try:
        return msgspec.convert(msgspec.to_builtins(run), Run)
    except (msgspec.ValidationError, OverflowError) as error:
        place, reason = explained(error, Run)
        raise UserError(f"--{place.replace('_', '-')}: {reason}") from None


def to_json(run: Run) -> bytes:
    settings = msgspec.to_builtins(run)
    usual = [name for name, value in LATER.items() if settings[name] == value]
    kept = {name: value for name, value in settings.items() if name not in usual}
    return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"


def from_json(path: Path) -> Run:
    """The run in a JSON file; unknown keys and wrong types are refused with their position."""
    try:
        with path.open("rb") as file:  # a pipe is fine, but not an endless file
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"{path} has more than {MOST_BYTES:,} bytes; give a run as JSON")
        return msgspec.json.decode(content, type=Run)
    except OSError as error:
        raise UserError(
            f"{path}: {os.strerror(error.errno or 0)}; give a file with a run as JSON"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: {': '.join(filter(None, explained(error, Run)))}") from None
