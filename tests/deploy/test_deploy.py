"""The examples for clusters ask for runs that the command line takes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from localsgd.basics.shards import share
from localsgd.cli.forecasting import in_shards, names_in
from localsgd.cli.main import _parse
from localsgd.cli.options import ResumeCommand, RunCommand, SweepCommand
from localsgd.cli.sweeping import swept
from localsgd.train.config.complete import complete_run
from localsgd.train.data.tasks import card

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = ("torchrun.sh", "slurm.sbatch", "sweep.sbatch")
TORCHRUN = {"NODES": "4", "NODE": "1", "HEAD": "first.machine", "PROCESSES": "2"}


def asked(
    script: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]
) -> list[str]:
    """What the script's launcher is asked for; the launcher is one that writes that down."""
    written = folder / "asked"
    for name in ("torchrun", "srun"):
        launcher = folder / name
        launcher.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{written}'\n")
        launcher.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", DEPLOY / script, *arguments],
        env={**os.environ, **environment, "PATH": path},
        check=True,
        timeout=30,
    )
    return written.read_text().splitlines()


def command_of(words: Sequence[str]) -> Any:
    """The command that the processes get, as the command line reads it."""
    start = words.index("localsgd") + 1
    return _parse(list(words[start:]))


def processes_of(wanted: RunCommand) -> int:
    """K, where the run can be trained at all."""
    return complete_run(wanted.run, card(wanted.run.task)).workers or 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_have_no_errors_of_syntax(script: str) -> None:
    subprocess.run(["bash", "-n", DEPLOY / script], check=True, timeout=30)


def test_torchrun_starts_the_run_and_then_goes_on_with_it(tmp_path: Path) -> None:
    out = tmp_path / "one"
    settings = ["--topology", "4x2", "--method", "hierarchical", "--local-steps", "1", "16"]
    words = asked("torchrun.sh", [str(out), *settings], tmp_path, TORCHRUN)
    given = dict(zip(words[:10:2], words[1:10:2], strict=True))
    assert given["--nnodes"] == "4"
    assert given["--node-rank"] == "1"
    assert given["--nproc-per-node"] == "2"
    wanted = command_of(words)
    assert isinstance(wanted, RunCommand)
    assert wanted.out == out
    assert processes_of(wanted) == 8
    out.mkdir()
    (out / "run.json").touch()
    again = command_of(asked("torchrun.sh", [str(out), *settings], tmp_path, TORCHRUN))
    assert isinstance(again, ResumeCommand)
    assert again.folder == out


def test_slurm_asks_for_as_many_workers_as_tasks(tmp_path: Path) -> None:
    out = tmp_path / "one"
    lines = (DEPLOY / "slurm.sbatch").read_text().splitlines()
    head = dict(
        line[10:].split("=") for line in lines if line.startswith("#SBATCH --") and "=" in line
    )
    wanted = command_of(asked("slurm.sbatch", [str(out)], tmp_path, {}))
    assert isinstance(wanted, RunCommand)
    assert wanted.out == out
    assert processes_of(wanted) == int(head["nodes"]) * int(head["ntasks-per-node"])


def test_an_array_trains_every_run_of_a_sweep_once(tmp_path: Path) -> None:
    """What a task's `srun` is asked for: one process, a shard each, and together all runs."""
    out = tmp_path / "sweep"
    settings = ["--task=digits", "--vary", "local_steps=1,4", "lr=0.1,0.2", "--seeds", "0..1"]
    whole, parts = set(swept(SweepCommand(vary=tuple(settings[2:4]), seeds=("0..1",)))), []
    for task in (1, 2, 3):
        array = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "3"}
        words = asked("sweep.sbatch", [str(out), *settings], tmp_path, array)
        assert words[0] == "--ntasks=1"
        wanted = command_of(words)
        assert isinstance(wanted, SweepCommand)
        assert (wanted.out, wanted.shard, wanted.hosting.quiet) == (out, f"{task}/3", True)
        runs = swept(wanted)
        assert set(runs) == whole
        parts += names_in(share(in_shards(runs, 3), wanted.shard))
    assert sorted(parts) == sorted(whole)
    usual = command_of(asked("sweep.sbatch", [str(out)], tmp_path, array))
    assert len(swept(usual)) == 15


def test_an_array_is_needed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        asked("sweep.sbatch", [str(tmp_path)], tmp_path, {})


def test_kubernetes_pods_start_a_run_of_their_size(tmp_path: Path) -> None:
    service, policy, claim, job = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    given = {entry["name"]: entry.get("value", "3") for entry in container["env"]}
    assert container["command"] == ["/opt/localsgd/torchrun.sh"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert given["HEAD"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert int(given["NODES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    pods = {"matchLabels": service["spec"]["selector"]}
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": pods}]}]
    volume = pod["volumes"][0]["persistentVolumeClaim"]
    assert volume["claimName"] == claim["metadata"]["name"]
    words = asked("torchrun.sh", container["args"], tmp_path, given)
    wanted = command_of(words)
    assert isinstance(wanted, RunCommand)
    assert processes_of(wanted) == int(given["NODES"]) * int(given["PROCESSES"])
