"""Random generators that depend on (seed, purpose, numbers) alone."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose, independent of all others."""
    text = f"{seed}/{purpose}/" + "/".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator seeded by `seed_for`."""
    return torch.Generator().manual_seed(seed_for(seed, purpose, *numbers))
