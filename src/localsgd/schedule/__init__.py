"""When to average: the length of each round, fixed or judged by the run itself.

`fixed`: schedules of the step alone. `adaptive`: schedules that judge by the run. `progress`: what
they see. `rounds`: the rounds that they make. `signals`, `observations`: how what differs between
workers is averaged before a schedule sees it.
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
