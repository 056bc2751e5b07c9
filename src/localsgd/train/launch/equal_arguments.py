"""Checks that all processes were given the same arguments."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.errors import UserError
from localsgd.wire.presence import named

_SHOWN = 3  # differences in a message


def check_same(what: str, value: bytes | str) -> None:
    """Raises the same error on every process unless all were given the same `value`.

    Digests are exchanged, and the texts only if these differ. Without a process group nothing
    happens.

    Args:
        what: a noun for the message, such as "configuration".
        value: a text of `key=value` lines, for a message that names the keys, or any bytes.

    Raises:
        UserError: some ranks differ from rank 0; it names them, and the keys if `value` has some.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    data = value.encode() if isinstance(value, str) else value
    digests = gather_bytes(hashlib.sha256(data).digest())
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if not different:
        return
    given = gather_bytes(data) if isinstance(value, str) else []
    texts = [text.decode(errors="replace") for text in given]
    raise UserError(_message(what, different, texts))


def _message(what: str, different: list[int], texts: list[str]) -> str:
    verb = "were" if len(different) > 1 else "was"
    start = f"{named(different)} {verb} started with a different {what} from rank 0"
    rank = different[0]
    differences = _differences(texts[0], texts[rank]) if texts else []
    if not differences:
        return f"{start}: start all of them alike"
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return f"{start}: {', '.join(differences[:_SHOWN])}{more} (rank 0 / rank {rank})"


def _differences(first: str, other: str) -> list[str]:
    """`learning_rate 0.1 / 0.2` for each line `key=value` that differs."""
    ours, theirs = _entries(first), _entries(other)
    keys = dict.fromkeys([*ours, *theirs])
    return [
        f"{key} {ours.get(key, 'missing')} / {theirs.get(key, 'missing')}"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


def _entries(text: str) -> dict[str, str]:
    lines = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in lines}


def gather_bytes(data: bytes) -> list[bytes]:
    """`data` of every process, in rank order."""
    device = _device()
    size = torch.tensor([len(data)], device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    longest = max(int(s) for s in sizes)
    row = torch.zeros(longest, dtype=torch.uint8, device=device)
    row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    rows = [torch.empty_like(row) for _ in sizes]
    dist.all_gather(rows, row)
    return [_bytes(r, int(s)) for r, s in zip(rows, sizes, strict=True)]


def _bytes(row: Tensor, size: int) -> bytes:
    return row[:size].cpu().numpy().tobytes()


def _device() -> torch.device:
    """The device on which the process group gathers: the CPU, unless it has only NCCL."""
    if "cpu" in dist.get_backend_config():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
