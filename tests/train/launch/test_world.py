from __future__ import annotations

import socket

import pytest

from localsgd.errors import UserError
from localsgd.train.launch.world import Store, World, attempt, find_world

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "4000",
}


def test_one_process():
    assert find_world({}) == World(0, 1, 0, 1)
    one = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert find_world(one) == World()


def test_torchrun_comes_before_slurm():
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "9"}
    assert find_world({**TORCHRUN, **slurm}) == World(3, 4, 1, 2, Store("a", 4000, of_rank_0=True))


def test_the_agents_store_outlives_rank_0():
    store = find_world({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).store
    assert store == Store("a", 4000, of_rank_0=False)


def test_srun():
    slurm = {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_NODELIST": "n1",
    }
    world = find_world(slurm)
    assert world == World(1, 2, 1, 2, Store("127.0.0.1", 15_005, True), bound=True)
    assert world.on_one_machine
    several = {**slurm, "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_LOCALID": "0"}
    world = find_world(several)
    assert world == World(1, 2, 0, 1, Store("n1", 15_005, True), bound=True)
    assert not world.on_one_machine
    assert str(Store("::1", 5, True)) == "[::1]:5"


def test_on_one_machine_a_store_of_rank_0_is_on_loopback():
    """Whatever the machine's name is said to be; a launcher's store is where it says."""
    alone = {**TORCHRUN, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    assert find_world(alone).store == Store("127.0.0.1", 4000, of_rank_0=True)
    for host in ("localhost", "::1", "127.0.0.7"):
        assert find_world({**alone, "MASTER_ADDR": host}).store == Store(host, 4000, True)
    by_agent = {**alone, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert find_world(by_agent).store == Store("a", 4000, of_rank_0=False)
    task = {
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_NODELIST": "n1",
        "MASTER_ADDR": "n1",
    }
    assert find_world(task).store == Store("127.0.0.1", 15_005, of_rank_0=True)


def test_a_name_that_means_loopback_here_alone_is_no_loopback(monkeypatch):
    """Debian gives a machine's own name 127.0.1.1; other machines know another address of it."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    assert not Store("node1", 4000, of_rank_0=True).on_loopback
    assert Store("localhost", 4000, of_rank_0=True).on_loopback


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_PORT": ""}, "but not MASTER_PORT"),
        ({"RANK": "4"}, "between 0 and its size - 1"),
        ({"LOCAL_WORLD_SIZE": "x"}, "LOCAL_WORLD_SIZE='x' is not a number"),
        ({"WORLD_SIZE": "1" * 5000}, "^WORLD_SIZE='1+\\.\\.\\.' is not a number"),
        ({"MASTER_PORT": "70000"}, "^MASTER_PORT='70000' is not a number from 0 to 65535"),
        ({"MASTER_ADDR": "a\udcff"}, "no name of a machine; set MASTER_ADDR"),
    ],
)
def test_half_an_environment_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        find_world({**TORCHRUN, **change})


def test_the_attempt_is_a_number():
    assert attempt({}) == 0
    assert attempt({"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
    with pytest.raises(UserError, match=r"^TORCHELASTIC_RESTART_COUNT='second' is not a number"):
        attempt({"TORCHELASTIC_RESTART_COUNT": "second"})
