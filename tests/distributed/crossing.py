"""Which tensor operations are carried out, and what crosses between processes, whoever asks."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Collects the names of all tensor operations inside, but for views, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.counts(func):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    def counts(self, func: Any) -> bool:
        return not func.is_view


class Crossing(Calls):
    """Collects the names of all collectives and sends that are started inside, in order."""

    def counts(self, func: Any) -> bool:
        return func.namespace == "c10d"
