"""Selects the parameters that have no weight decay."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def no_decay(module: nn.Module) -> set[str]:
    """Names of the parameters of batch-norm layers, shortcuts' and last ones included.

    The paper puts no weight decay on them (Lin et al., 2020, appendix A). They are told by the
    type of their layer; the released code goes by name and misses those of shortcuts.
    """
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        if isinstance(part, _BatchNorm)
        for name, _ in part.named_parameters(recurse=False)
    }
