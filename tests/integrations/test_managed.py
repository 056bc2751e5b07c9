"""What `Managed` refuses, with a manager that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from localsgd.errors import UserError
from localsgd.integrations.torchft import Managed


def manager() -> Any:
    return SimpleNamespace(
        _use_async_quorum=False,
        _group_world_size=1,
        _replica_id="w0",
        register_state_dict_fn=lambda *_: None,
    )


@pytest.mark.parametrize("workers", ["4", 0, 1.5, True])
def test_what_is_no_number_of_workers(workers: Any) -> None:
    with pytest.raises(UserError, match=f"workers={workers!r} is no number of workers; give 1"):
        Managed(manager(), workers=workers)


def test_a_manager_serves_one_optimizer() -> None:
    managed = Managed(manager(), workers=4)
    managed.keep(dict, lambda state: None)
    with pytest.raises(UserError, match="serves another LocalSGD already"):
        managed.keep(dict, lambda state: None)
