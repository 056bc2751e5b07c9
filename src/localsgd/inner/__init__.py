"""Inner optimizers that PyTorch lacks, and transforms of gradients."""

from localsgd.inner.lars import LARS
from localsgd.inner.sign_descent import SignDescent
from localsgd.inner.transforms import Clip, GradientNoise, Transform

__all__ = ["LARS", "Clip", "GradientNoise", "SignDescent", "Transform"]
