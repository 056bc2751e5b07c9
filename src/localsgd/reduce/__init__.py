"""How updates become their mean."""

from localsgd.reduce.bfloat16 import BFloat16
from localsgd.reduce.compressed import CompressedMean
from localsgd.reduce.compressor import Compressor, NotFinite
from localsgd.reduce.exact import ExactMean
from localsgd.reduce.int8 import Int8
from localsgd.reduce.majority import MajorityVote
from localsgd.reduce.ordered import OrderedMean
from localsgd.reduce.power_sgd import PowerSgd
from localsgd.reduce.reducer import Reducer
from localsgd.reduce.sign import Sign
from localsgd.reduce.top_k import TopK

__all__ = [
    "BFloat16",
    "CompressedMean",
    "Compressor",
    "ExactMean",
    "Int8",
    "MajorityVote",
    "NotFinite",
    "OrderedMean",
    "PowerSgd",
    "Reducer",
    "Sign",
    "TopK",
]
