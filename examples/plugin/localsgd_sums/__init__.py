"""Parts for localsgd: a small transformer that learns to add in words, two bits a number."""

from localsgd_sums.model import tiny_gpt
from localsgd_sums.outer import part_way
from localsgd_sums.schedule import Doubling
from localsgd_sums.task import ENTRY
from localsgd_sums.two_bit import TwoBit

__version__ = "0.1.0"

# What `--use localsgd_sums` reads, where the package is not installed.
LOCALSGD = {
    "tasks": {"sums": ENTRY},
    "models": {"tiny-gpt": tiny_gpt},
    "schedules": {"doubling": Doubling},
    "compressors": {"two-bit": TwoBit},
    "outers": {"part-way": part_way},
}
