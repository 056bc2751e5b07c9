"""Hessian products and eigenvalues beside curvlinops, pytorch-hessian-eigenthings and PyHessian.

ResNet-20 after a few steps of SGD, over the first 256 training images of CIFAR-10, in one process
on one thread. Each tool multiplies the same vectors in turns; then each finds the ten largest
eigenvalues its own way. Values, products, time a product and total time go to a file of JSON
lines, and a table is printed. Times are processor seconds, which a busy machine disturbs least.

    pip install curvlinops-for-pytorch hessian-eigenthings==1.0.0a5 PyHessian torchvision
    python benchmarks/landscape.py --data-dir DATA --out landscape.jsonl

Tools that are not installed are left out. Power iteration (--power) takes an hour.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.landscape import (
    Hessian,
    Objective,
    estimated,
    in_batches,
    lanczos,
    power_iteration,
    write_records,
)
from localsgd.train.data import tasks
from localsgd.train.engine.machine import processor

TOP = 10
Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Found:
    """Ten values, their vectors if the tool gives them, and the products it took."""

    values: list[float]
    vectors: Tensor | None
    products: int


class Tool:
    """One way to multiply: `product` maps a vector [n] to [n]; `eigenvalues` finds the top ten."""

    def __init__(
        self,
        name: str,
        product: Callable[[Tensor], Tensor],
        eigenvalues: dict[str, Callable[[], Found]],
    ):
        self.name, self.product, self.eigenvalues = name, product, eigenvalues


def trained(task: tasks.Task, steps: int) -> nn.Module:
    """ResNet-20 after `steps` of SGD on other images, with batch-norm statistics measured."""
    torch.manual_seed(0)
    model = tasks.models.build("resnet20", task, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(steps):
        x, y = task.train_batch(torch.arange(1000 + 128 * step, 1128 + 128 * step), None)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    data = in_batches(*task.train_batch(torch.arange(1000, 2000), None), 250)
    model.load_state_dict({**model.state_dict(), **estimated(model, data).buffers})
    return model.eval()


def ours(name: str, model: nn.Module, data: Batches, **options: Any) -> Tool:
    def operator() -> Hessian:
        return Hessian(Objective(model, nn.CrossEntropyLoss(), data), **options)

    hessian = operator()

    def found(method: Callable[..., Any]) -> Found:
        result = method(operator(), TOP)
        return Found(list(result.values), result.vectors, result.products)

    return Tool(
        name,
        lambda v: hessian.apply(v.unsqueeze(0))[0],
        {"lanczos": lambda: found(lanczos), "power": lambda: found(power_iteration)},
    )


def curvlinops(model: nn.Module, data: Batches) -> Tool:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    params = [p for p in model.parameters() if p.requires_grad]
    operator = HessianLinearOperator(
        model, nn.CrossEntropyLoss(), params, data, check_deterministic=False
    )

    def arpack() -> Found:
        inner, products = operator.to_scipy(), 0

        def product(v: Any) -> Any:
            nonlocal products
            products += 1
            return inner @ v

        counted = LinearOperator(inner.shape, matvec=product, dtype=inner.dtype)
        values, vectors = eigsh(counted, k=TOP, which="LA", tol=1e-3)
        return Found(values[::-1].tolist(), torch.from_numpy(vectors.T[::-1].copy()), products)

    return Tool("curvlinops", lambda v: operator @ v, {"lanczos": arpack})


def eigenthings(model: nn.Module, data: Batches) -> Tool:
    import hessian_eigenthings as he

    operator = he.HessianOperator(model, data, he.supervised_loss(nn.CrossEntropyLoss()))

    def counted(method: Callable[..., Any], **options: Any) -> Found:
        products = 0

        def product(v: Tensor) -> Tensor:
            nonlocal products
            products += 1
            return operator.matvec(v)

        wrapped = he.LambdaOperator(
            product, size=operator.size, device=operator.device, dtype=operator.dtype
        )
        result = method(wrapped, k=TOP, seed=0, **options)
        return Found(result.eigenvalues.tolist(), result.eigenvectors, products)

    return Tool(
        "hessian-eigenthings",
        operator.matvec,
        {
            "lanczos": lambda: counted(he.lanczos, max_iter=50, tol=1e-3, which="LA"),
            "power": lambda: counted(he.deflated_power_iteration, max_iter=1000, tol=1e-4),
        },
    )


def pyhessian(name: str, model: nn.Module, data: Batches, *, single: bool) -> Tool:
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    model = copy.deepcopy(model)  # it leaves gradients with a graph behind
    given = {"data": data[0]} if single else {"dataloader": data}
    inside = hessian(model, nn.CrossEntropyLoss(), cuda=False, **given)
    shapes = [p.shape for p in inside.params]
    sizes = [p.numel() for p in inside.params]
    products = 0

    def parts_product(parts: list[Tensor]) -> list[Tensor]:
        if single:
            return hessian_vector_product(inside.gradsH, inside.params, parts)
        return inside.dataloader_hv_product(parts)[1]

    def product(v: Tensor) -> Tensor:
        parts = [p.view(s) for p, s in zip(v.split(sizes), shapes, strict=True)]
        return torch.cat([p.reshape(-1) for p in parts_product(parts)]).detach()

    def power() -> Found:
        nonlocal products
        products = 0
        plain = inside.dataloader_hv_product

        def counting(v: list[Tensor]) -> Any:
            nonlocal products
            products += 1
            hv = parts_product(v) if single else plain(v)[1]
            return float(sum((a * b).sum() for a, b in zip(hv, v, strict=True))), hv

        inside.full_dataset, inside.dataloader_hv_product = True, counting
        values, vectors = inside.eigenvalues(maxIter=1000, tol=1e-4, top_n=TOP)
        inside.full_dataset, inside.dataloader_hv_product = not single, plain
        order = sorted(range(TOP), key=lambda i: -values[i])
        flat = torch.stack([torch.cat([p.reshape(-1) for p in vectors[i]]) for i in order])
        return Found([values[i] for i in order], flat.detach(), products)

    return Tool(name, product, {"power": power})


def tools(model: nn.Module, x: Tensor, y: Tensor) -> list[Tool]:
    whole, parts = in_batches(x, y, len(x)), in_batches(x, y, max(1, len(x) // 4))
    every = [
        ours("localsgd", model, whole),
        ours("localsgd, no graph kept", model, whole, graph_bytes=0),
        ours("localsgd, in four batches", model, parts),
    ]
    there = importlib.util.find_spec
    if there("curvlinops"):
        every.append(curvlinops(model, whole))
    if there("hessian_eigenthings"):
        every.append(eigenthings(model, whole))
    if there("pyhessian"):
        every.append(pyhessian("PyHessian, one batch", model, whole, single=True))
        every.append(pyhessian("PyHessian, loader", model, whole, single=False))
    return every


def time_products(every: list[Tool], n: int, rounds: int) -> list[dict[str, Any]]:
    """Fastest and median processor seconds a product, tools in turns; and the products' spread."""
    vectors = torch.randn(rounds, n, generator=torch.Generator().manual_seed(1))
    for tool in every:
        tool.product(vectors[0])  # warm
    seconds: dict[str, list[float]] = {tool.name: [] for tool in every}
    off = {tool.name: 0.0 for tool in every}
    for v in vectors:
        expected = None
        for tool in every:
            start = time.process_time()
            result = tool.product(v)
            seconds[tool.name].append(time.process_time() - start)
            expected = result if expected is None else expected
            error = float((result - expected).norm() / expected.norm())
            off[tool.name] = max(off[tool.name], error)
    return [
        {
            "kind": "product",
            "tool": tool.name,
            "fastest_seconds": min(seconds[tool.name]),
            "median_seconds": sorted(seconds[tool.name])[rounds // 2],
            "rounds": rounds,
            "relative_difference": off[tool.name],
        }
        for tool in every
    ]


def time_eigenvalues(tool: Tool, method: str, judge: Tool) -> dict[str, Any]:
    """One tool's ten values, and the residual of each by one and the same product."""
    start, wall = time.process_time(), time.perf_counter()
    found = tool.eigenvalues[method]()
    spent, elapsed = time.process_time() - start, time.perf_counter() - wall
    residuals = None
    if found.vectors is not None:
        units = found.vectors / found.vectors.norm(dim=1, keepdim=True)
        pairs = zip(found.values, units, strict=True)
        residuals = [
            float((judge.product(v) - value * v).norm() / abs(value)) for value, v in pairs
        ]
    return {
        "kind": "top eigenvalues",
        "tool": tool.name,
        "method": method,
        "values": found.values,
        "relative_residuals": residuals,
        "products": found.products,
        "processor_seconds": spent,
        "wall_seconds": elapsed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("landscape.jsonl"))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7, help="products timed for each tool")
    parser.add_argument("--train-steps", type=int, default=30)
    parser.add_argument("--no-eigenvalues", action="store_true", help="products alone")
    parser.add_argument("--power", action="store_true", help="power iteration too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = tasks.load("cifar10", options.data_dir)
    model = trained(task, options.train_steps)
    every = tools(model, *task.train_batch(torch.arange(options.images), None))
    n = sum(p.numel() for p in model.parameters())
    about = {
        "kind": "machine",
        "torch": torch.__version__,
        "processor": processor(),
        "threads": 1,
        "images": options.images,
    }
    records = [about, *time_products(every, n, options.rounds)]
    for record in records[1:]:
        show(record)
    methods = [] if options.no_eigenvalues else ["lanczos", *(["power"] if options.power else [])]
    for method in methods:
        for tool in every:
            if method in tool.eigenvalues and "," not in tool.name.replace(", one batch", ""):
                records.append(time_eigenvalues(tool, method, every[0]))
                show(records[-1])
                write_records(options.out, records)
    write_records(options.out, records)


def show(record: dict[str, Any]) -> None:
    if record["kind"] == "product":
        print(
            f"{record['tool']:26} {record['fastest_seconds']:7.3f} s a product (median "
            f"{record['median_seconds']:.3f}), differs by {record['relative_difference']:.1e}",
            flush=True,
        )
        return
    worst = max(record["relative_residuals"] or [float("nan")])
    print(
        f"{record['tool']:26} {record['method']:8} {record['products']:5} products "
        f"{record['processor_seconds']:7.1f} s, values {record['values'][0]:.5g} to "
        f"{record['values'][-1]:.5g}, largest relative residual {worst:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
