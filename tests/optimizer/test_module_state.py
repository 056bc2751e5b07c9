"""Every kind of module state in real processes: what `docs/module-state.md` says of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from localsgd import LocalSGD, UserError
from tests.distributed.harness import run


class Model(nn.Module):
    """A layer and a buffer that each rank fills with its own."""

    def __init__(self, buffer: Tensor | None = None, persistent: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 2).double()
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("odd", buffer, persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def trained(model: nn.Module, steps: int = 3, **keywords: Any) -> LocalSGD:
    weights = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.SGD(weights, lr=0.1)
    optimizer = LocalSGD(inner, model, **{"local_steps": 2, **keywords})
    for step in range(steps):
        torch.manual_seed(10 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(4, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    return optimizer


def dense(buffer: Tensor) -> Any:
    return buffer.to_dense().tolist() if buffer.layout != torch.strided else buffer.tolist()


def eye(rank: int) -> Tensor:
    return torch.eye(2) * (1 + rank)


BUFFERS: dict[str, tuple[Callable[[int], Tensor], Any]] = {
    "float32": (eye, [[1.5, 0.0], [0.0, 1.5]]),
    "bfloat16": (lambda r: torch.tensor([1.0 + r]).bfloat16(), [1.5]),
    "integer": (lambda r: torch.tensor([5 + r]), [5]),
    "boolean": (lambda r: torch.tensor([r == 0]), [True]),
    "complex": (lambda r: torch.tensor([1j + r]), [1j]),
    "conjugated": (lambda r: torch.tensor([1j + r]).conj(), [-1j]),
    "expanded": (lambda r: torch.tensor([1.0 + r]).expand(2), [1.5, 1.5]),
    "gaps": (lambda r: torch.full((2, 2), 1.0 + r)[:, 0], [1.5, 1.5]),
    "float8": (lambda r: torch.tensor([1.0 + r]).to(torch.float8_e4m3fn), [1.0]),
    "mask": (lambda r: torch.tensor([float(r == 0), 1.0]), [1.0, 1.0]),
    "sparse": (lambda r: torch.eye(2).to_sparse(), [[1.0, 0.0], [0.0, 1.0]]),
    "quantised": (lambda r: torch.quantize_per_tensor(torch.ones(1), 0.5, 0, torch.qint8), None),
    "nested": (lambda r: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), None),
}


def buffers() -> dict[str, tuple[Any, Any, bool]]:
    """The value in averaged_model(), after finish(), and whether one's own came back meanwhile."""
    found = {}
    for kind, (make, _) in BUFFERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Nested tensors are a prototype.
            odd = make(0)
            model = Model(odd)
            optimizer = trained(model)
            model.odd = make(dist.get_rank())
            own = model.odd
            readable = kind not in ("quantised", "nested")
            with optimizer.averaged_model():
                inside = dense(model.odd) if readable else None
            back = model.odd is own
            if readable:
                back = back and dense(own) == dense(make(dist.get_rank()))
            optimizer.finish()
            found[kind] = (inside, dense(model.odd) if readable else None, back)
    return found


def test_buffers_of_every_kind() -> None:
    for found in run(2, buffers):
        for kind, (_, expected) in BUFFERS.items():
            assert found[kind] == (expected, expected, True), kind


def refusals() -> list[str]:
    """Buffers that have no mean, at finish(); the weights have been averaged all the same."""
    found = []
    rank = dist.get_rank()
    for late in (
        torch.ones(2 + rank),
        torch.ones(2, dtype=torch.float64 if rank else torch.float32),
        torch.eye(2).to_sparse() * (1 + rank),
    ):
        model = Model(torch.zeros(1))
        optimizer = trained(model)
        model.odd = late
        before = model.body.weight.detach().clone()
        with pytest.raises(UserError) as caught, optimizer.averaged_model():
            pass
        assert torch.equal(model.body.weight, before)
        with pytest.raises(UserError, match="odd"):
            optimizer.finish()
        weight = model.body.weight.detach()
        both = [torch.empty_like(weight), torch.empty_like(weight)]
        dist.all_gather(both, weight.contiguous())
        assert torch.equal(*both)
        found.append(str(caught.value))
    return found


def test_buffers_that_have_no_mean() -> None:
    for found in run(2, refusals):
        shape, dtype, sparse = found
        assert "the buffer odd" in shape
        assert "differs in dtype or shape" in shape
        assert "differs in dtype or shape" in dtype
        assert "only plain dense tensors" in sparse
        assert not any("\n" in text for text in found)


def own_state() -> tuple[list[float], list[float]]:
    """What is no part of the averaged model: persistent=False, and frozen parameters."""
    model = Model(torch.zeros(1), persistent=False)
    optimizer = trained(model)
    model.odd = torch.tensor([float(dist.get_rank())])
    with optimizer.averaged_model():
        model.odd = torch.zeros(7)  # Another batch size.
    optimizer.finish()
    return model.odd.tolist(), model.frozen.tolist()


def test_what_each_worker_keeps() -> None:
    assert run(2, own_state) == [([0.0], [1.0, 1.0]), ([1.0], [1.0, 1.0])]


def broadcast() -> list[Any]:
    """start="broadcast" hands out every plain kind, and refuses odd ones that differ."""
    found: list[Any] = []
    for kind in ("float32", "integer", "conjugated", "expanded", "gaps", "float8"):
        model = Model(BUFFERS[kind][0](dist.get_rank()))
        trained(model, steps=0, start="broadcast")
        found.append(dense(model.odd) == dense(BUFFERS[kind][0](0)))
    model = Model(torch.eye(2).to_sparse() * (1 + dist.get_rank()))
    with pytest.raises(UserError, match="can't send them"):
        trained(model, steps=0, start="broadcast")
    trained(Model(torch.eye(2).to_sparse()), steps=0, start="broadcast")
    return found


def test_a_start_that_is_handed_out() -> None:
    assert run(2, broadcast) == [[True] * 6] * 2


def normed() -> list[tuple[float, float, bool]]:
    """Spectral norms of the weight in averaged_model() and after finish()."""
    found = []
    for norm in (parametrizations.spectral_norm, nn.utils.spectral_norm):
        torch.manual_seed(0)
        model = nn.Sequential(norm(nn.Linear(3, 8).double()), nn.Tanh(), nn.Linear(8, 3).double())
        optimizer = trained(model, steps=9, local_steps=10)
        layer: Any = model[0]
        own = [buffer.clone() for buffer in model.buffers()]
        with optimizer.averaged_model():
            inside = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
        back = all(torch.equal(*pair) for pair in zip(own, model.buffers(), strict=True))
        optimizer.finish()
        found.append((inside, torch.linalg.matrix_norm(layer.weight.detach(), 2).item(), back))
    return found


def test_spectral_norm() -> None:
    for found in run(2, normed):
        for inside, after, back in found:
            assert inside == pytest.approx(1.0, abs=1e-6)
            assert after == pytest.approx(1.0, abs=1e-6)
            assert back


def pruned() -> list[list[float]]:
    """Pruned in mid-round: each rank has a mask of its own until finish()."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8).double(), nn.Linear(8, 3).double())
    prune.l1_unstructured(model[0], "weight", 0.25)
    optimizer = trained(model)
    layer: Any = model[0]
    prune.random_unstructured(layer, "weight", 0.5)
    with optimizer.averaged_model():
        assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
        inside = layer.weight_mask.flatten().tolist()
    assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask)
    optimizer.finish()
    return [inside, layer.weight_mask.flatten().tolist()]


def test_pruning() -> None:
    first, second = run(2, pruned)
    assert first == second
    assert first[0] == first[1]
    assert set(first[0]) == {0.0, 1.0}


def quantised() -> list[float]:
    """Fake quantisation, by channel too: buffers take their size in the first forward pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import (
            FakeQuantize,
            MovingAverageMinMaxObserver,
            MovingAveragePerChannelMinMaxObserver,
        )

        model: Any = Model(torch.zeros(1)).float()
        model.inputs = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
        model.outputs = FakeQuantize(
            MovingAveragePerChannelMinMaxObserver,
            quant_min=-128,
            quant_max=127,
            dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric,
            ch_axis=1,
        )
        model.forward = lambda x: model.outputs(model.body(model.inputs(x.float())))
        optimizer = trained(model)
        optimizer.finish()
    observer = model.inputs.activation_post_process
    scale = (observer.max_val - observer.min_val) / 255
    torch.testing.assert_close(model.inputs.scale, scale.view(1))
    return [*model.inputs.scale.tolist(), *model.outputs.scale.tolist()]


def test_quantisation_aware_training() -> None:
    first, second = run(2, quantised)
    assert len(first) == 3
    assert first == second


@pytest.mark.parametrize(
    ("dtype", "message"),
    [(torch.float8_e4m3fn, "which can't be summed"), (torch.complex64, "only floating parameters")],
)
def test_parameters_that_are_refused(dtype: torch.dtype, message: str) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(4).to(dtype))
    with pytest.raises(UserError, match=message):
        LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), model, local_steps=1)
