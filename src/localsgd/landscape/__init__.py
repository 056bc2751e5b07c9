"""Flat or sharp: curvature, sharpness and interpolation of any PyTorch model on any data."""

from localsgd.landscape.announce import Progress, on_stderr
from localsgd.landscape.batches import Data, in_batches
from localsgd.landscape.density import Density, spectral_density
from localsgd.landscape.directions import filter_normalised, filter_norms, shared_directions
from localsgd.landscape.drift import Drift, DriftHistory, cosine_of, drift
from localsgd.landscape.gauss_newton import empirical_fisher, gauss_newton
from localsgd.landscape.hessian import Hessian
from localsgd.landscape.hooks import Every, largest_eigenvalue, step_noise
from localsgd.landscape.interpolation import Barrier, Interpolation, interpolate
from localsgd.landscape.lanczos import lanczos
from localsgd.landscape.noise import GradientNoise, gradient_noise
from localsgd.landscape.objective import Objective, Score
from localsgd.landscape.operator import Matrix, Operator, Scaled, dense
from localsgd.landscape.parameters import Layout
from localsgd.landscape.plane import Plane, plane
from localsgd.landscape.power import power_iteration
from localsgd.landscape.records import read_records, write_records
from localsgd.landscape.report import Plan, compare, evaluate, write_report
from localsgd.landscape.sharpness import Sharpness, sharpness, worst_rise
from localsgd.landscape.spectrum import Spectrum
from localsgd.landscape.statistics import Statistics, averaged, estimated, kept
from localsgd.landscape.surface import Curve, Surface, curve, surface
from localsgd.landscape.trace import Estimate, hutch_plus_plus, hutchinson

__all__ = [
    "Barrier", "Curve", "Data", "Density", "Drift", "DriftHistory", "Estimate", "Every",
    "GradientNoise", "Hessian", "Interpolation", "Layout", "Matrix", "Objective", "Operator",
    "Plan", "Plane", "Progress", "Scaled", "Score", "Sharpness", "Spectrum", "Statistics",
    "Surface", "averaged", "compare", "cosine_of", "curve", "dense", "drift",
    "empirical_fisher", "estimated", "evaluate", "filter_normalised", "filter_norms",
    "gauss_newton", "gradient_noise", "hutch_plus_plus", "hutchinson", "in_batches",
    "interpolate", "kept", "lanczos", "largest_eigenvalue", "on_stderr", "plane",
    "power_iteration", "read_records", "shared_directions", "sharpness", "spectral_density",
    "step_noise", "surface", "worst_rise", "write_records", "write_report",
]  # fmt: skip
