"""Inner optimizers that torch lacks, and what may happen to a gradient before they see it."""

from localsgd.inner.lars import LARS
from localsgd.inner.sign_descent import SignDescent
from localsgd.inner.transforms import Clip, GradientNoise, Transform

__all__ = ["LARS", "Clip", "GradientNoise", "SignDescent", "Transform"]
