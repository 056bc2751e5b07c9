"""Rules for which parameters have no weight decay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Rule: TypeAlias = Callable[[nn.Module], Collection[str]]
"""From a model to the names of its parameters that have no weight decay."""

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def no_decay(module: nn.Module) -> set[str]:
    """Names of biases, and of all parameters of normalisation layers and embeddings.

    What is usually spared where transformers are trained. They are told by the type of their layer;
    a normalisation of one's own counts if it is called `...Norm`, and a bias if it is called
    `bias`, or `..._bias` or `bias_...` as in attention and recurrent layers. Weights that an
    embedding shares with another layer are spared.

    Examples:
        >>> sorted(no_decay(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
        ['0.bias', '1.bias', '1.weight']
    """
    spared = {
        id(parameter)
        for part in module.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if _is_spared(part) or _is_bias(name)
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in spared}


def _is_spared(part: nn.Module) -> bool:
    return isinstance(part, _NORMS + _EMBEDDINGS) or type(part).__name__.endswith("Norm")


def _is_bias(name: str) -> bool:
    return name.startswith("bias") or name.endswith("bias")


def batch_norm(module: nn.Module) -> set[str]:
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


RULES: Mapping[str, Rule] = {
    "usual": no_decay,
    "batch-norm": batch_norm,
    "nothing": lambda module: set(),
}
"""By name: what has no weight decay."""
