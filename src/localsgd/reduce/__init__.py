"""How updates become their mean."""

from localsgd.reduce.exact import ExactMean
from localsgd.reduce.ordered import OrderedMean
from localsgd.reduce.seam import Reducer

__all__ = ["ExactMean", "OrderedMean", "Reducer"]
