"""A run as a value: everything that its result depends on, and nothing else.

Where a run writes, how many processes host its workers and where the data lies are not part of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.train.config.methods import method

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=1)]
OuterName = Literal["average", "sgd", "block-momentum", "slowmo", "bmuf", "diloco"]
MOST_BYTES = 1 << 20
"""Of a run as JSON."""
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
"""What a method may choose, and what is taken where it does not."""
Compression = Literal[
    "none", "sign", "ef-sign", "majority", "int8", "top-k", "bfloat16", "power-sgd"
]


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run.

    Settings that are `None` take the task's or the paper's value in `complete_run`.
    """

    task: str = "digits"
    """What is trained; `localsgd tasks` lists what there is."""
    model: str | None = None
    """Which network; the task's own where not given."""
    train_samples: Count | None = None
    """A class-balanced subset of the training data of this size; all where not given."""
    method: str = "post-local"
    """How workers synchronise; `localsgd tasks` lists the methods too."""
    workers: Count | None = None
    """K; follows from the topology where not given, 8 where neither is."""
    topology: str | None = None
    """Who averages with whom: 16, 8x2 (8 blocks of 2), 4x2x2, 2+3+3; flat where not given."""
    local_steps: tuple[Count, ...] | None = None
    """H for each level, innermost first: H, H^b, ...; 8 for a flat topology."""
    switch: str = "first-decay"
    """When post-local SGD leaves H = 1: first-decay, epoch:E, step:T or fraction:S of the run."""
    step_warmup: Positive | None = None
    """Epochs over which local-warmup raises H; H epochs where not given (the paper's choice)."""
    step_warmup_shape: Literal["linear", "exponential", "constant"] = "linear"
    """How H grows meanwhile."""
    average: Literal["auto", "models", "gradients"] = "auto"
    """What is averaged while H = 1; auto is gradients where that is possible."""
    reduction: Literal["exact", "ordered"] = "exact"
    """Order of summation: the wire's, or the workers' (same bits however they are hosted)."""
    qsr_alpha: Positive | None = None
    """α of qsr, in units of the learning rate; 0.3 of its peak where not given."""
    adapt_every: Positive | None = None
    """Epochs after which adacomm, decreasing and plateau look again; 1 where not given."""
    waiting: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    """The share of the time that method waiting lets workers wait."""
    compression: Compression | None = None
    """What the outermost level sends in place of updates; all but sign and majority with error
    feedback. The method's, or none, where not given."""
    sign_scales: Literal["tensor", "row"] | Count = "tensor"
    """What shares a scale where signs are sent: each tensor, the whole row (the paper's text), or
    each chunk of so many scalars, a multiple of 8."""
    compression_way: Literal["auto", "gather", "two-phase"] = "auto"
    """Over the wire: all payloads to all, or chunks to their owners and back; auto by size and K.
    """
    top_k_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01
    """Of the scalars that top-k sends."""
    power_sgd_rank: Count = 2
    """Rank of power-sgd."""
    outer: OuterName | None = None
    """What the outermost level does with the mean update; the method's, or average."""
    outer_lr: Positive | None = None
    """Its learning rate; 1 where the outer optimizer has no other usual one."""
    outer_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Its momentum; the usual one of the outer optimizer where not given."""
    inner_state: str | None = None
    """The inner optimizer's state at outermost syncs, by key: keep, average or reset, with a
    period, as in momentum_buffer=reset or exp_avg=average,exp_avg_sq=average:4."""
    fragments: Count | None = None
    """In how many parts, in turns, the model is averaged at the outermost level."""
    delay: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """How many syncs later a mean is applied, while training goes on; 0 to fragments."""
    correction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """How much of the way to a late mean a worker goes; all of it where not given."""
    partition: str = "reshuffled"
    """Who owns which samples: reshuffled every epoch (the paper), fixed, by-label,
    dirichlet:ALPHA, column:FILE."""
    exhausted: Literal["repeat", "leave"] = "repeat"
    """What a worker with less data than others does in a round: reads on from its start, or leaves
    the round early."""
    slowdown: tuple[Positive, ...] = ()
    """How much longer each worker takes for a step; slow ones take fewer steps in a round."""
    weighting: Literal["equal", "samples", "fednova"] = "equal"
    """What an update weighs in the mean: alike, by the worker's data, or that normalised by its
    steps."""
    epochs: Positive | None = None
    """The budget, in passes over the training set by all workers together."""
    batch: Count | None = None
    """B: samples of a worker's mini-batch."""
    lr: Positive | None = None
    """Learning rate of a single worker whose batch is lr_batch."""
    lr_batch: Count | None = None
    """The batch for which lr is meant; the peak is lr K B / lr_batch."""
    lr_scaling: Literal["linear", "sqrt", "local", "local-sqrt", "none"] | None = None
    """How the rate grows with the batch: with the global one (linear), its square root (sqrt), the
    local one (local), its square root (local-sqrt), or not; linear where the method has no other.
    """
    lr_warmup: NotNegative | None = None
    """Epochs over which the rate rises from lr to its peak; 5 in 300 where not given."""
    lr_decay_at: tuple[Share, ...] | None = None
    """Shares of the run after which the rate is multiplied by lr_decay; the task's (usually 0.5 and
    0.75) where not given."""
    lr_decay: Share = 0.1
    """What a decay multiplies by."""
    lr_schedule: Literal["steps", "cosine", "cyclic"] | None = None
    """How the rate falls: by steps (the paper), a cosine, or a cosine with warm restarts."""
    lr_cycles: Count = 4
    """How many cycles a cyclic rate has; a snapshot of the averaged model is kept of each."""
    lr_floor: Share = 0.0
    """Where a cosine ends, as a share of the peak."""
    optimizer: Literal["sgd", "adam", "adamw", "lars", "larc", "sign"] | None = None
    """Of the local steps; sgd where the method has no other."""
    trust: Positive = 0.001
    """Trust coefficient of lars and larc."""
    clip: Positive | None = None
    """Largest norm of a worker's gradient; the task's, or none, where not given."""
    noise: NotNegative = 0.0
    """η of gradient noise of variance η / (1 + t)^γ; none where 0."""
    noise_decay: NotNegative = 0.55
    """γ of gradient noise."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | None = None
    """Local momentum of sgd, lars, larc and sign; the task's (usually 0.9) where not given."""
    nesterov: bool = True
    """Nesterov momentum, as in the paper."""
    weight_decay: NotNegative | None = None
    """On all parameters but those of batch norm."""
    batch_norm: Literal["mean", "recalibrated", "own"] = "mean"
    """Of the averaged model: the workers' mean, re-estimated on training data, or worker 0's."""
    evaluate_local: Literal["end", "always", "never"] = "end"
    """When every worker's own model is evaluated too."""
    evaluate_every: Positive = 1.0
    """Epochs between evaluations."""
    init: str | None = None
    """A safetensors file with the starting weights, such as the model.safetensors of another run.
    """
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16 is autocast: weights stay in float32."""
    channels_last: bool = False
    """Memory format of images and filters."""
    compile: bool = False
    """torch.compile the models."""
    batched: bool = False
    """Forward and backward of all workers of a process at once, equal to one by one to rounding:
    quicker for small models with small batches."""
    prefetch: bool | None = None
    """Prepare the next batch in a thread while this one trains: the same batches, and quicker where
    preparing takes time that training leaves over. For images in files where not given."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    """Of everything that is random."""

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
        """With what its method's preset has chosen left open again, for another method to choose.

        As it is where it has not been completed: what stands there was given.
        """
        own = method(self.method).preset
        chosen = {**PRESETS, **own}
        if any(getattr(self, name) is None for name in PRESETS):
            return self
        names = [name for name in (*PRESETS, "lr") if name in chosen]
        open_again = {name: None for name in names if getattr(self, name) == chosen[name]}
        return msgspec.structs.replace(self, **open_again)

    def parsed_topology(self) -> Topology:
        """What `topology` and `workers` say together; 8 workers where both are left out."""
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
    """Refuses values outside their range, by the option that gives them."""
    try:
        return msgspec.convert(msgspec.to_builtins(run), Run)
    except (msgspec.ValidationError, OverflowError) as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise UserError(f"--{place.rstrip('`').replace('_', '-')}: {reason}") from None


def to_json(run: Run) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def from_json(path: Path) -> Run:
    """The run in a JSON file; unknown keys and wrong types are refused by their place."""
    try:
        with path.open("rb") as file:  # a pipe will do, but nothing without an end
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UserError(f"{path} has more than {MOST_BYTES:,} bytes; give a run as JSON")
        return msgspec.json.decode(content, type=Run)
    except OSError as error:
        raise UserError(
            f"{path}: {os.strerror(error.errno or 0)}; give a file with a run as JSON"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None
