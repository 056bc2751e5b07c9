"""Reducers by name, for the command line and for `LocalSGD(reducer="ef-sign")`.

To add one, add a line: to `COMPRESSORS` for a compressor, which is then taken in `CompressedMean`,
or to `REDUCERS`. Those from outside the package are in `OUTSIDE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from localsgd.basics.options import made
from localsgd.basics.outside import Outside
from localsgd.errors import UserError, short
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
        own: of those from outside, as `NAME.OPTION=VALUE`.
    """

    mean: Literal["exact", "ordered"] = "exact"
    scales: Literal["tensor", "row"] | int = "tensor"
    fraction: float = 0.01
    way: Way = "auto"
    rank: int = 2
    seed: int = 0
    own: tuple[str, ...] = ()


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


def _check(what: str, part: Any) -> None:
    if not callable(part):
        raise UserError(
            f"{what} is {short(part)}; give the class of a Compressor or a Reducer, or a function "
            "that makes one"
        )


OUTSIDE = Outside("reducer", "localsgd.compressors", lambda: REDUCERS, _check)
"""Compressors and reducers of other packages: classes, or functions that make them."""


def _from_outside(name: str, options: Options) -> Reducer:
    """A compressor is taken in `CompressedMean`, with error feedback."""
    found = made(name, OUTSIDE[name], options.own, {"seed": options.seed})
    if isinstance(found, Reducer):
        return found
    if isinstance(found, Compressor):
        return CompressedMean(found, way=options.way)
    raise UserError(f"{name} makes a {type(found).__name__}, which is no Compressor or Reducer")


def reducer_named(name: str, options: Options | None = None) -> Reducer:
    """The reducer of that name, bound to no row.

    Examples:
        >>> reducer_named("ef-sign")
        CompressedMean(Sign(scales='tensor'), feedback=True, way='auto')
    """
    options = options or Options()
    return REDUCERS[name](name, options) if name in REDUCERS else _from_outside(name, options)
