"""When to average: the length of each round, fixed or chosen from the run's progress.

`fixed`: schedules of the step alone. `adaptive`: schedules of learning rate, loss or waiting time.
`progress`: what schedules see. `rounds`: the rounds that they make. `signals`, `observations`: how
numbers that differ between workers are averaged before a schedule sees them.
"""

from localsgd.schedule.adaptive import adacomm, cyclic, decreasing, plateau, qsr, waiting_below
from localsgd.schedule.fixed import every, piecewise, post_local, warmup
from localsgd.schedule.progress import Observing, Progress, Schedule, Sight, epochs, fraction
from localsgd.schedule.rounds import Position, Round, picture, rounds

__all__ = [
    "Observing",
    "Position",
    "Progress",
    "Round",
    "Schedule",
    "Sight",
    "adacomm",
    "cyclic",
    "decreasing",
    "epochs",
    "every",
    "fraction",
    "picture",
    "piecewise",
    "plateau",
    "post_local",
    "qsr",
    "rounds",
    "waiting_below",
    "warmup",
]
