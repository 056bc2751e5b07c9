"""Inner optimizers that torch lacks, and what may happen to a gradient before they see it."""

from localsgd.optim.gradients import Clip, GradientNoise, Transform
from localsgd.optim.lars import LARS
from localsgd.optim.sign_descent import SignDescent

__all__ = ["LARS", "Clip", "GradientNoise", "SignDescent", "Transform"]
