"""A model's chosen parameters as one flat vector.

Letters: n scalars in the chosen parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from localsgd.errors import UserError

EVERY = ("*",)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the chosen parameters, in the model's order."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def n(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, vector: Tensor) -> tuple[Tensor, ...]:
        """Views of a vector [n] in the parameters' shapes."""
        if vector.shape != (self.n,):
            raise UserError(
                f"a vector of shape {list(vector.shape)} does not fit {self.n} chosen parameters; "
                f"give shape [{self.n}]"
            )
        parts = vector.split([math.prod(shape) for shape in self.shapes])
        return tuple(p.view(shape) for p, shape in zip(parts, self.shapes, strict=True))

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector [n] by the parameters' names."""
        return dict(zip(self.names, self.split(vector), strict=True))

    def flat(self, parts: Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:
        """The parts, in order or by name, as one new vector [n]."""
        tensors = [parts[name] for name in self.names] if isinstance(parts, Mapping) else parts
        return torch.cat([part.detach().reshape(-1) for part in tensors])

    def filters(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Each parameter as rows: [filters, scalars a filter]; vectors and scalars are one row.

        A filter is a slice of the first dimension: an output channel of a convolution, a row of a
        linear layer (Li et al. 2018, section 4).
        """
        for name, part in self.named(vector).items():
            yield name, part.reshape(part.shape[0], -1) if part.ndim > 1 else part.reshape(1, -1)


def choose(model: nn.Module, parameters: str | Sequence[str] | None = None) -> Layout:
    """The layout of the parameters whose names match one of the shell patterns.

    Without patterns: those with `requires_grad`. Tied weights count once, under their first name.
    """
    every = dict(model.named_parameters())
    if not every:
        raise UserError(
            f"the model ({type(model).__name__}) has no parameters, so there is no landscape"
        )
    if parameters is None:
        chosen = [name for name, p in every.items() if p.requires_grad]
    else:
        patterns = (parameters,) if isinstance(parameters, str) else tuple(parameters)
        chosen = [name for name in every if any(fnmatchcase(name, p) for p in patterns)]
    if not chosen:
        raise UserError(
            f"no parameter matches {parameters!r}; the model has, among others, "
            f"{', '.join(list(every)[:4])}"
            if parameters is not None
            else "all parameters of the model are frozen; name those wanted, as parameters='*'"
        )
    _refuse_mixed(every, chosen)
    if (dtype := every[chosen[0]].dtype).itemsize < 4:
        raise UserError(
            f"the chosen parameters are {dtype}, in which sums over the data lose what is "
            "measured; give model.float()"
        )
    return Layout(tuple(chosen), tuple(every[name].shape for name in chosen))


def _refuse_mixed(every: Mapping[str, nn.Parameter], chosen: Sequence[str]) -> None:
    kinds = {(every[name].dtype, every[name].device) for name in chosen}
    if len(kinds) > 1:
        raise UserError(
            f"the chosen parameters have {len(kinds)} kinds of dtype and device "
            f"({', '.join(sorted(f'{t} on {d}' for t, d in kinds))}); "
            "convert the model to one, or name parameters of one kind"
        )


def same_architecture(first: nn.Module, second: nn.Module) -> None:
    """Raises if parameters or buffers of two models differ in names, shapes or dtypes."""
    one, two = _shapes(first), _shapes(second)
    for name in [*one, *two]:
        a, b = one.get(name), two.get(name)
        if a != b:
            raise UserError(
                f"the models are not of one architecture: {name!r} is {_told(a)} in the first and "
                f"{_told(b)} in the second; give two models built alike"
            )


def _shapes(model: nn.Module) -> dict[str, tuple[list[int], torch.dtype]]:
    return {name: (list(one.shape), one.dtype) for name, one in model.state_dict().items()}


def _told(kind: tuple[list[int], torch.dtype] | None) -> str:
    return "absent" if kind is None else f"of shape {kind[0]} and {kind[1]}"
