"""What is run, fixed before it ran: configurations of each figure and map, three seeds each. The
paper's two figures were given two more seeds when a verdict was made to take five.

The paper names H in {1, 2, 4, 8, 16}, K = 16 for the first figure and B = 16 for the second, and
among the batches 16, 64 and 256; the other ends of the axes are ours.
"""

from __future__ import annotations

from experiments.convex.setup import Setup, hierarchical, local, quadratic, switched

SEEDS = 3
FIGURE_SEEDS = 5
"""Seeds for the paper's two figures, whose claims are judged."""
LOCAL_STEPS = (1, 2, 4, 8, 16)
POWERS = tuple(2**i for i in range(11))
MAP_LOCAL_STEPS = tuple(2**i for i in range(9))

# Of thinned axes, every other power of two is run: 1, 4, 16, ..., with all that the claims name.


def time_figure(seeds: int = FIGURE_SEEDS, thin: bool = False) -> list[Setup]:
    """fig:convex_time: K = 16, B from 1 to 1024."""
    return [
        local(16, batch, local_steps, seed)
        for local_steps in LOCAL_STEPS
        for batch in _axis(POWERS, thin)
        for seed in range(seeds)
    ]


def speedup_figure(seeds: int = FIGURE_SEEDS, thin: bool = False) -> list[Setup]:
    """fig:convex_speedup: B = 16, K from 1 to 1024."""
    return [
        local(workers, 16, local_steps, seed)
        for local_steps in LOCAL_STEPS
        for workers in _axis(POWERS, thin)
        for seed in range(seeds)
    ]


def time_map(seeds: int = SEEDS, thin: bool = False) -> list[Setup]:
    """The first figure with H up to 256; H is thinned too."""
    return [
        local(16, batch, local_steps, seed)
        for local_steps in _axis(MAP_LOCAL_STEPS, thin)
        for batch in _axis(POWERS, thin)
        for seed in range(seeds)
    ]


def _axis(powers: tuple[int, ...], thin: bool) -> tuple[int, ...]:
    return powers[::2] if thin else powers


METHOD_BATCHES = (1, 4, 16, 64, 256, 1024)
SWITCHES = (16, 64, 256)
HIERARCHIES = ((1, 4), (1, 16), (4, 4), (16, 4))
ALPHAS = (8.0, 16.0, 32.0)


def method_batches(thin: bool = False) -> tuple[int, ...]:
    """B of the other schedules; thinned, without the ends, which cost most."""
    return METHOD_BATCHES[1:-1] if thin else METHOD_BATCHES


def methods(seeds: int = SEEDS, thin: bool = False) -> list[Setup]:
    """Sixteen workers: post-local (H = 16 in the end), 4 x 4 hierarchical, the quadratic rule."""
    return [
        setup
        for batch in method_batches(thin)
        for seed in range(seeds)
        for setup in (
            *(switched(16, batch, 16, after, seed) for after in SWITCHES),
            *(hierarchical(4, 4, batch, steps, seed) for steps in HIERARCHIES),
            *(quadratic(16, batch, 1, alpha, seed) for alpha in ALPHAS),
        )
    ]
