"""A task of a Slurm job step: the variables that `srun` sets for every process it starts.

| what | from |
| --- | --- |
| rank, size | SLURM_PROCID, SLURM_STEP_NUM_TASKS (else SLURM_NTASKS) |
| local rank | SLURM_LOCALID |
| local size | entry SLURM_NODEID of SLURM_STEP_TASKS_PER_NODE (else SLURM_TASKS_PER_NODE) |
| host | MASTER_ADDR, else loopback if all tasks are on one machine, else the first name in \
SLURM_STEP_NODELIST (else SLURM_JOB_NODELIST) |
| port | MASTER_PORT, else 15000 + (job id + step id) mod 16000: the same for all tasks of a step, \
another for another job, below the ports that Linux hands out itself |

The body of a batch script, outside of `srun`, carries SLURM_PROCID=0 and the job's SLURM_NTASKS
too; it is one process, not rank 0 of a step, and is known by ENVIRONMENT=BATCH without any
SLURM_STEP variable. So is a login by ssh, which Slurm puts into the step `extern`, and the shell of
an allocation (step `interactive`): such steps have names, or the numbers that stand for them.

The shell of `srun -n8 --pty bash` looks like a task of a step that is started in it, since that
inherits SLURM_PTY_PORT; both are refused with a hint what to unset. A batch job that was submitted
from there inherits it too, and is recognised by ENVIRONMENT=BATCH.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from localsgd.basics.units import WHOLE, whole_within
from localsgd.errors import UserError, short

LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 15_000, 16_000
_FIRST_NAMED_STEP = 0xFFFFFFF0  # the numbers of batch, extern and interactive lie above
MOST_PROCESSES = (1 << 31) - 1
"""That `torch.distributed` can count."""
LAST_PORT = (1 << 16) - 1


@dataclass(frozen=True)
class Task:
    """One process of a job step; `host` and `port` are rank 0's."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    port: int


def find_task(environment: Mapping[str, str]) -> Task | None:
    """The task that `environment` describes, or None outside of `srun`.

    Raises:
        UserError: a variable is missing or isn't a number, or the rank isn't one of the step's.
    """
    if "SLURM_PROCID" not in environment or _is_batch_script(environment):
        return None
    size = number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    rank = number(environment, "SLURM_PROCID")
    if size == 1 or _step(environment) is None:
        return Task(0, 1, 0, 1, "localhost", 0)
    if rank >= size:
        raise UserError(
            f"SLURM_PROCID={rank} of {size} tasks: a rank lies between 0 and the number of tasks "
            "- 1; start with srun, or unset SLURM_PROCID"
        )
    if environment.get("SLURM_PTY_PORT") and environment.get("ENVIRONMENT") != "BATCH":
        raise UserError(
            f"SLURM_PTY_PORT is set: this is the shell of srun --pty with {size} tasks, or a step "
            "inside of it; unset SLURM_PROCID for a run of one process here, or SLURM_PTY_PORT "
            "for a step of all tasks by srun"
        )
    local_size = _local_size(environment, size)
    host = LOOPBACK if local_size == size else first_host(_nodes(environment))
    return Task(
        rank=rank,
        size=size,
        local_rank=number(environment, "SLURM_LOCALID"),
        local_size=local_size,
        host=environment.get("MASTER_ADDR") or host,
        port=_port(environment),
    )


def number(
    environment: Mapping[str, str], *names: str, least: int = 0, most: int = MOST_PROCESSES
) -> int:
    """The first of `names` that is set, as a number from `least` to `most`."""
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        raise UserError(f"{names[0]} is not set: start with torchrun, srun or --processes")
    found = whole_within(environment[name], least, most)
    if found is None:
        raise UserError(
            f"{name}={short(environment[name])} is not a number from {least} to {most}: start with "
            "torchrun, srun or --processes"
        )
    return found


def first_host(nodes: str) -> str:
    """The first machine of a node list: `gpu[012-015,020],cpu1` gives `gpu012`."""
    name = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", name[0]) if name else nodes


def tasks_on(node: int, counts: str) -> int | None:
    """Tasks on a node by a text such as `2(x3),1`: 2 on each of three nodes, 1 on the fourth.

    Those of the first node if there are fewer; `None` if the text has another form.
    """
    form = r"\s*([0-9]{1,9})(?:\(x([0-9]{1,9})\))?\s*"
    entries = [re.fullmatch(form, count) for count in counts.split(",")]
    found = [(int(entry[1]), int(entry[2] or 1)) for entry in entries if entry]
    if len(found) < len(entries):
        return None
    for tasks, nodes in found:
        if node < nodes:
            return tasks
        node -= nodes
    return found[0][0]


def _is_batch_script(environment: Mapping[str, str]) -> bool:
    in_a_step = any(name.startswith("SLURM_STEP") for name in environment)
    return environment.get("ENVIRONMENT") == "BATCH" and not in_a_step


def _nodes(environment: Mapping[str, str]) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environment.get(name):
            return environment[name]
    raise UserError(
        "neither SLURM_JOB_NODELIST nor MASTER_ADDR is set, so rank 0's machine is unknown; set "
        "MASTER_ADDR to its name"
    )


def _local_size(environment: Mapping[str, str], size: int) -> int:
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if environment.get(name):
            known = environment.get("SLURM_NODEID")
            node = number(environment, "SLURM_NODEID") if known else 0
            tasks = tasks_on(node, environment[name])
            if not tasks:
                raise UserError(
                    f"{name}={short(environment[name])} does not say how many tasks are on node "
                    f"{node}: expected Slurm's form, such as 2(x3),1"
                )
            return tasks
    if environment.get("SLURM_NTASKS_PER_NODE"):
        return min(size, number(environment, "SLURM_NTASKS_PER_NODE", least=1))
    return size


def _port(environment: Mapping[str, str]) -> int:
    if environment.get("MASTER_PORT"):
        return number(environment, "MASTER_PORT", least=1, most=LAST_PORT)
    job = number(environment, "SLURM_JOB_ID", "SLURM_JOBID", most=WHOLE - 1)
    return _FIRST_PORT + (job + (_step(environment) or 0)) % _PORTS


def _step(environment: Mapping[str, str]) -> int | None:
    """The number of the job step; None for a named step, which `srun` has not started."""
    text = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or "0"
    return whole_within(text, 0, _FIRST_NAMED_STEP - 1)
