from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.errors import UserError
from localsgd.train.launch import World, joined
from localsgd.train.launch.join import _take_threads, gpu_of, threads_of
from localsgd.train.launch.world import Store

pytestmark = pytest.mark.timeout(120)


def test_alone_nothing_is_joined():
    with joined() as world:
        assert world == World(0, 1, 0, 1)


def test_srun(zygote, free_port):
    job = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": str(free_port - 15_000),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_TASKS_PER_NODE": "2",
        "SLURM_CPUS_PER_TASK": "3",
    }
    tasks = [{**job, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    outcome = zygote.run("join", tasks)
    assert outcome.statuses == [0, 0], outcome.err
    for rank, out in enumerate(outcome.out):
        assert out.startswith(f"World(rank={rank}, size=2, local_rank={rank}, local_size=2")
        assert out.endswith(" [2.0, 2.0] 3\nFalse\n")


def test_torchrun_with_threads_of_the_users_choice(zygote, torchrun):
    outcome = zygote.run("join", torchrun(2))
    assert [out.splitlines()[0].endswith("[2.0, 2.0] 1") for out in outcome.out] == [True, True]


def test_nor_where_a_batch_script_names_another_address_of_it(zygote, torchrun):
    named = [{**env, "MASTER_ADDR": "0.0.0.0"} for env in torchrun(2)]
    outcome = zygote.run("listen", named)
    assert outcome.statuses == [0, 0], outcome.err
    assert {out.splitlines()[0] for out in outcome.out} == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
def test_on_one_machine_nothing_listens_beyond_loopback(zygote, torchrun, host):
    if host == "::1" and not Path("/proc/net/if_inet6").is_file():
        pytest.skip("this machine has no IPv6")
    outcome = zygote.run("listen", [{**env, "MASTER_ADDR": host} for env in torchrun(2)])
    assert outcome.statuses == [0, 0], outcome.err
    found = [set(out.splitlines()[0].split()) for out in outcome.out]
    assert found[0] == {"127.0.0.1", host}  # gloo and the store
    assert found[1] == {"127.0.0.1"}
    assert {out.splitlines()[1] for out in outcome.out} == {"lo lo"}  # names of hosts may mislead


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_nobody_joins_says_so(zygote, torchrun, rank):
    outcome = zygote.run("join_in_vain", [torchrun(2)[rank]])
    assert outcome.statuses == [0], outcome.err
    start = f"rank {rank} could not connect to the other 1 process at localhost:"
    assert outcome.out[0].startswith(start)
    assert "within 1 s: " in outcome.out[0]
    assert outcome.out[0].count("\n") == 1


def test_shares_of_a_machine():
    assert [threads_of(World(0, 8, 0, n), 6) for n in (1, 4, 8)] == [6, 1, 1]
    assert gpu_of(World(5, 8, 1, 4), 4) == 1
    assert gpu_of(World(5, 8, 1, 4, bound=True), 1) == 0
    with pytest.raises(UserError, match="4 processes on this machine, but 1 GPU:"):
        gpu_of(World(5, 8, 1, 4), 1)


@pytest.mark.parametrize("granted", ["many", "1" * 5000, "-1"])
def test_threads_that_slurm_does_not_count_are_refused(
    monkeypatch: pytest.MonkeyPatch, granted: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    with pytest.raises(UserError, match=r"^SLURM_CPUS_PER_TASK='.*' is not a number from 0 to"):
        _take_threads(World(0, 2, 0, 2, Store("a", 1, True), bound=True))
