"""How updates become their mean.

`Reducer` is the seam, and `CompressedMean` a reducer that takes any `Compressor`; `Extents` says
where tensors lie in a vector that is compressed. `reducer_named` has them by name.
"""

from localsgd.reduce.bfloat16 import BFloat16
from localsgd.reduce.compressed import CompressedMean
from localsgd.reduce.compressor import (
    Codec,
    Compressor,
    Doubting,
    Keeping,
    NotFinite,
    Reading,
    check_dtype,
    put,
    scale_dtype,
    take,
)
from localsgd.reduce.exact import ExactMean
from localsgd.reduce.extents import Extent, Extents
from localsgd.reduce.int8 import Int8
from localsgd.reduce.majority import MajorityVote
from localsgd.reduce.named import Options, reducer_named
from localsgd.reduce.ordered import OrderedMean
from localsgd.reduce.power_sgd import PowerSgd
from localsgd.reduce.reducer import Reducer, Unsuitable
from localsgd.reduce.sign import Sign
from localsgd.reduce.top_k import TopK

__all__ = [
    "BFloat16",
    "Codec",
    "CompressedMean",
    "Compressor",
    "Doubting",
    "ExactMean",
    "Extent",
    "Extents",
    "Int8",
    "Keeping",
    "MajorityVote",
    "NotFinite",
    "Options",
    "OrderedMean",
    "PowerSgd",
    "Reading",
    "Reducer",
    "Sign",
    "TopK",
    "Unsuitable",
    "check_dtype",
    "put",
    "reducer_named",
    "scale_dtype",
    "take",
]
