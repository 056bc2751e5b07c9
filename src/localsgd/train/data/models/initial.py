"""Initial weights of models."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

HeadInit = Literal["gaussian", "torch"]


def initialise(module: nn.Module, head: HeadInit = "gaussian") -> None:
    """Set the starting weights of `module` (Lin et al., 2020, appendix A; Goyal et al., 2017).

    - convolutions, and linear layers before the last: zero mean, variance 2 / fan-out
      (He et al., 2015), no bias;
    - batch norm: weight 1, bias 0;
    - the last linear layer: N(0, 0.01^2) with zero bias, or with `head="torch"` as PyTorch made it
      (which is what the paper's released code does).
    """
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    for part in module.modules():
        if isinstance(part, nn.Conv2d) or (isinstance(part, nn.Linear) and part is not linear[-1]):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            _zero(part.bias)
        elif isinstance(part, nn.BatchNorm2d):
            part.reset_parameters()
    if linear and head == "gaussian":
        nn.init.normal_(linear[-1].weight, std=0.01)
        _zero(linear[-1].bias)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
