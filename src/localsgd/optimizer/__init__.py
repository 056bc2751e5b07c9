"""Local SGD for a user's own training loop: a `torch.optim.Optimizer` around any other.

`local_sgd` has the step, beside the paper. It stands on `assembled`, its parts, and `resumable`,
its state, which `saved` checks. Models are averaged by `model_levels`, or by `managed` where
workers come and go (`managing`, `membership`); gradients by `gradient_averaging`. `save_load` saves
and loads workers: `save_parts` says what, `save_found` checks it, and `regroup` gives it to another
number of them. Most of the rest are checks around a user's loop, which `guards` and `together`
call.
"""

from localsgd.optimizer.export import compact
from localsgd.optimizer.local_sgd import LocalSGD
from localsgd.optimizer.save_load import load, save, saved

__all__ = ["LocalSGD", "compact", "load", "save", "saved"]
