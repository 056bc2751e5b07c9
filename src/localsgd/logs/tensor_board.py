"""Numbers for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from localsgd.basics.files import check_no_link
from localsgd.logs.logger import Logger, Numbers


@final
class TensorBoard(Logger):
    """Writes event files into `tensorboard/` in the run's folder: `tensorboard --logdir runs`."""

    def begin(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        place = self.path / "tensorboard"
        check_no_link(place)
        for file in place.glob("events.out.tfevents.*"):
            file.unlink()  # what was there before is logged again
        self._writer = SummaryWriter(str(place))
        lines = "\n".join(f"    {name} = {value}" for name, value in settings.items())
        self._writer.add_text("settings", lines)

    def log(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()
