"""Reducers by name, for the command line and for `LocalSGD(reducer="ef-sign")`.

To add one, add a line: to `COMPRESSORS` for a compressor, which is then taken in `CompressedMean`,
or to `REDUCERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from localsgd.errors import unknown_name
from localsgd.reduce.bfloat16 import BFloat16
from localsgd.reduce.compressed import CompressedMean, Way
from localsgd.reduce.compressor import Compressor
from localsgd.reduce.exact import ExactMean
from localsgd.reduce.int8 import Int8
from localsgd.reduce.majority import MajorityVote
from localsgd.reduce.ordered import OrderedMean
from localsgd.reduce.power_sgd import PowerSgd
from localsgd.reduce.reducer import Reducer
from localsgd.reduce.sign import Sign
from localsgd.reduce.top_k import TopK


@dataclass(frozen=True)
class Options:
    """What may be said beside a name; each reducer reads its own.

    Args:
        mean: of what is sent as it is: `exact` or `ordered`.
        scales: of signs, as in `Sign`.
        fraction: of the scalars that top-k sends.
        way: over the wire, as in `CompressedMean`.
        rank: of PowerSGD.
        seed: of PowerSGD's first directions.
    """

    mean: Literal["exact", "ordered"] = "exact"
    scales: Literal["tensor", "row"] | int = "tensor"
    fraction: float = 0.01
    way: Way = "auto"
    rank: int = 2
    seed: int = 0


MEANS: Mapping[str, Callable[[], Reducer]] = {"exact": ExactMean, "ordered": OrderedMean}

COMPRESSORS: Mapping[str, Callable[[Options], Compressor]] = {
    "sign": lambda options: Sign(options.scales),
    "ef-sign": lambda options: Sign(options.scales),
    "int8": lambda options: Int8(),
    "top-k": lambda options: TopK(options.fraction),
    "bfloat16": lambda options: BFloat16(),
}


def _compressed(name: str, options: Options) -> Reducer:
    compressor = COMPRESSORS[name](options)
    return CompressedMean(compressor, feedback=name != "sign", way=options.way)


REDUCERS: Mapping[str, Callable[[str, Options], Reducer]] = {
    "none": lambda name, options: MEANS[options.mean](),
    **{name: lambda name, options: MEANS[name]() for name in MEANS},
    **dict.fromkeys(COMPRESSORS, _compressed),
    "majority": lambda name, options: MajorityVote(Sign(options.scales)),
    "power-sgd": lambda name, options: PowerSgd(
        rank=options.rank, mean=MEANS[options.mean](), seed=options.seed
    ),
}


def reducer_named(name: str, options: Options | None = None) -> Reducer:
    """The reducer of that name, bound to no row.

    Examples:
        >>> reducer_named("ef-sign")
        CompressedMean(Sign(scales='tensor'), feedback=True, way='auto')
    """
    if name not in REDUCERS:
        raise unknown_name("reducer", name, REDUCERS)
    return REDUCERS[name](name, options or Options())
