"""Local SGD for a user's own training loop: a `torch.optim.Optimizer` around any other."""

from localsgd.optimizer.export import compact
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.save_load import load, save, saved

__all__ = ["LocalSGD", "compact", "load", "save", "saved"]
