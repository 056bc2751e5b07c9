from __future__ import annotations

import pytest

from localsgd.errors import UserError
from localsgd.train.launch.slurm import Task, find_task, first_host, tasks_on

STEP = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[07-09,12]",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu[012-015,020],cpu1", "gpu012"),
        ("cpu1,gpu[012-015]", "cpu1"),
        ("rack[2-3]n[08,10].example", "rack2n08.example"),
    ],
)
def test_the_first_host_of_a_node_list(nodes, first):
    assert first_host(nodes) == first


def test_tasks_on_a_node():
    assert [tasks_on(node, "2(x3),1") for node in range(4)] == [2, 2, 2, 1]
    assert tasks_on(4, "2(x3),1") == 2  # none of them
    assert tasks_on(10**8, "2(x99999999), 1, 3") == 3  # no list of all
    for text in ("two", "", "2(x3", "1" * 5000, "²"):
        assert tasks_on(0, text) is None


def test_a_task_of_a_step():
    assert find_task(STEP) == Task(3, 5, 1, 2, "gpu07", 15_000 + 123456 % 16_000)


def test_what_the_step_and_the_user_say_comes_first():
    said = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "gpu08",
        "SLURM_STEP_TASKS_PER_NODE": "4",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "7",
    }
    assert find_task({**STEP, **said}) == Task(3, 4, 1, 4, "127.0.0.1", 15_000 + 123463 % 16_000)
    spread = {**said, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    assert find_task({**STEP, **spread}) == Task(3, 4, 1, 2, "gpu08", 15_000 + 123463 % 16_000)
    task = find_task({**STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert task is not None
    assert (task.host, task.port) == ("10.0.0.1", 4000)


def test_the_body_of_a_batch_script_is_no_task():
    batch = {**STEP, "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}
    assert find_task(batch) is None
    assert find_task({**batch, "SLURM_STEP_ID": "0"}) is not None
    assert find_task({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) is None  # inside salloc


@pytest.mark.parametrize("step", ["extern", "interactive", "4294967292", "4294967290", "-1", "²"])
def test_steps_that_srun_has_not_started_are_one_process(step):
    assert find_task({**STEP, "SLURM_STEP_ID": step}) == Task(0, 1, 0, 1, "localhost", 0)


def test_a_shell_of_srun_is_told_what_to_unset():
    shell = {**STEP, "SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "41531"}
    with pytest.raises(UserError, match=r"srun --pty with 5 tasks.* unset SLURM_PROCID .* run"):
        find_task(shell)
    task = find_task({**STEP, "SLURM_STEP_ID": "0"})
    assert find_task({**shell, "ENVIRONMENT": "BATCH"}) == task  # submitted from such a shell
    alone = find_task({**shell, "SLURM_STEP_NUM_TASKS": "1"})
    assert alone is not None
    assert alone.size == 1


@pytest.mark.parametrize("name", ["SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_what_is_missing_is_named(name):
    with pytest.raises(UserError, match=name):
        find_task({key: value for key, value in STEP.items() if key != name})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SLURM_NODEID", "abc"),
        ("SLURM_NODEID", "-5"),
        ("SLURM_PROCID", "9"),
        ("SLURM_PROCID", "²"),
        ("SLURM_PROCID", "1" * 5000),
        ("SLURM_LOCALID", "1" * 5000),
        ("SLURM_NTASKS", str(1 << 31)),
        ("SLURM_JOB_ID", "1" * 5000),
        ("SLURM_TASKS_PER_NODE", "1" * 5000),
        ("SLURM_TASKS_PER_NODE", "2(x99999999999)"),
        ("SLURM_TASKS_PER_NODE", "0"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
    ],
)
def test_what_is_no_such_number_is_refused_in_a_line_that_names_it(name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"^{name}=") as refused:
        find_task({**STEP, name: text})
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 300
