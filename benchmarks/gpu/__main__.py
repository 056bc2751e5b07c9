"""Many workers on one GPU: `pack` on a machine with CIFAR-10, `speed` and `accuracy` on one with a
GPU.

    python -m benchmarks.gpu pack --data-dir DIR cifar10.npz       # 16,000 + 4,000 images: 60 MiB
    PYTHONPATH=src python -m benchmarks.gpu speed --data cifar10.npz
    PYTHONPATH=src python -m benchmarks.gpu accuracy --data cifar10.npz --rows A2 A5 --minutes 8
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu import accuracy, data, speed
from benchmarks.gpu.hosting import VARIANTS
from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.tasks.images import ImageTask


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.do(options)
    except UserError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)

    packing = commands.add_parser("pack", help="CIFAR-10 into one file")
    packing.add_argument("file", type=Path)
    packing.add_argument("--data-dir", type=Path, help="where CIFAR-10 lies")
    packing.add_argument("--train", type=int, default=16_000, help="images; 0 for all")
    packing.add_argument("--test", type=int, default=4_000, help="images; 0 for all")
    packing.set_defaults(do=_pack)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data", type=Path, help="what pack has written")
    shared.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    shared.add_argument("--model", default="resnet20")

    timing = commands.add_parser("speed", parents=[shared], help="samples a second by variant")
    timing.add_argument("--workers", type=int, default=16, help="K")
    timing.add_argument("--batch", type=int, default=128, help="B")
    timing.add_argument("--steps", type=int, default=20, help="of a turn")
    timing.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    timing.set_defaults(do=_speed)

    training = commands.add_parser("accuracy", parents=[shared], help="rows of the first table")
    training.add_argument("--rows", nargs="+", choices=accuracy.ROWS, default=["A2", "A5"])
    training.add_argument("--epochs", type=float, default=100)
    training.add_argument("--minutes", type=float, default=8, help="then it stops, to go on later")
    training.add_argument("--variant", choices=VARIANTS, default="bf16-graph-16")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--out", type=Path, default=Path("runs/gpu"))
    training.set_defaults(do=_accuracy)
    return parser


def _pack(options: argparse.Namespace) -> None:
    task = tasks.load("cifar10", options.data_dir)
    assert isinstance(task, ImageTask)
    size = data.pack(task, options.file, options.train, options.test)
    print(f"{options.file}: {size / 2**20:.1f} MiB")


def _task(options: argparse.Namespace) -> ImageTask:
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    if options.data is None:
        return data.noise(16_384, device)
    return data.unpack(options.data, device)


def _speed(options: argparse.Namespace) -> None:
    speed.table(
        _task(options),
        options.model,
        options.workers,
        options.batch,
        options.variants,
        options.steps,
    )


def _accuracy(options: argparse.Namespace) -> None:
    if options.data is None:
        raise UserError("accuracy needs images; give --data FILE, which pack makes")
    task, deadline = _task(options), time.monotonic() + 60 * options.minutes
    variant = VARIANTS[options.variant]
    if variant.needs_cuda and options.device == "cpu":
        raise UserError(f"variant {options.variant} needs a GPU; use fp32 or bf16")

    def make(name: str, path: Path) -> accuracy.Training:
        return accuracy.Training(
            name, task, options.model, variant, options.epochs, path, deadline, options.seed
        )

    accuracy.rows(options.rows, make, options.out)


if __name__ == "__main__":
    sys.exit(main())
