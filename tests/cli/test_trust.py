"""A run over several machines says that their network must be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from localsgd.cli.training import TRUST
from tests.cli.conftest import TINY, Started, Zygote, free_port


@pytest.mark.parametrize(("local_size", "said"), [(1, 1), (2, 0)])
def test_it_is_said_once_and_on_one_machine_never(
    zygote: Zygote, tmp_path: Path, local_size: int, said: int
) -> None:
    port = str(free_port())
    arguments = ["run", *TINY, "--out", str(tmp_path / "run")]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    ended = zygote.run(
        [
            Started(
                arguments,
                {
                    **place,
                    **{"RANK": str(rank), "WORLD_SIZE": "2"},
                    **{"LOCAL_RANK": str(rank % local_size), "LOCAL_WORLD_SIZE": str(local_size)},
                },
            )
            for rank in range(2)
        ]
    )
    assert [process.status for process in ended] == [0, 0], ended
    words = " ".join("".join(process.out for process in ended).split())
    assert words.count(TRUST) == said
