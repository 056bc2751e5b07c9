"""What one pass of a model costs, counted where it happens.

B: samples · C, H, W: channels, height, width · T: tokens · D: width · L: layers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.train.data.models.lstm import Tied


def _convolution(layer: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    return output.numel() * layer.weight[0].numel()


def _linear(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    return output.numel() * layer.in_features


def _tied(layer: Tied, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    return output.numel() * inputs[1].shape[1]


def _lstm(layer: nn.LSTM, inputs: tuple[Tensor, ...], output: Any) -> int:
    """Four gates, each of which multiplies what comes in and the output before by a matrix."""
    tokens = inputs[0].numel() // inputs[0].shape[-1]
    weights = [value for name, value in layer.named_parameters() if name.startswith("weight")]
    return tokens * sum(weight.numel() for weight in weights)


_COUNTS: dict[type[nn.Module], Callable[..., int]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.LSTM: _lstm,
    Tied: _tied,
}


@torch.no_grad()
def count_operations(model: nn.Module, sample: Tensor) -> int:
    """Multiply-accumulates of a forward pass over `sample`, a batch of one.

    Those of convolutions, linear layers and LSTMs, which are all but a few: normalisation,
    activations, pooling and biases are left out, as in the paper's table of scaling ratios (Lin et
    al., 2020; what it gives for ResNet-50 are floating-point operations, two of which make one
    multiply-accumulate). The model is left as it was.
    """
    total = 0

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal total
        total += _COUNTS[type(layer)](layer, inputs, output)

    modes = {part: part.training for part in model.modules()}
    hooks = [part.register_forward_hook(note) for part in modes if type(part) in _COUNTS]
    try:
        model.eval()(sample)
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training
    return total
