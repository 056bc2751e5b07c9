"""Processes that are started again when they die, while the others go on.

Each is a worker that finds the others by itself (see `integrations/torchft.py`). This process only
starts them, says what became of them, and ends them with itself. The first ones wait for each other
at a gate, a store on loopback, so that a run begins with all of them.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from localsgd.basics.units import plural
from localsgd.train.launch.ending import PEER_LOST_EXIT
from localsgd.train.launch.launch import POLL_SECONDS, Children, how_ended

OPEN = "open"
"""Key of the gate's store: is there once workers may begin."""
OVER = "over"
"""Is there once a worker has ended with success: who has not begun by then would be alone."""


def made_key(name: str) -> str:
    """Is there once a worker is heard by the others."""
    return f"made/{name}"


def joined_key(name: str) -> str:
    """Is there once a worker has been in a sync that counts."""
    return f"joined/{name}"


def say(text: str) -> None:
    print(f"localsgd: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Tended:
    """Workers of this machine.

    Args:
        command: that a worker runs.
        names: theirs.
        environment: of a worker with this name; the second argument is whether it is started again.
        gate: the store in which they say how far they are.
        restarts: how often each may be started again.
    """

    command: Sequence[str]
    names: Sequence[str]
    environment: Callable[[str, bool], dict[str, str]]
    gate: dist.TCPStore
    restarts: int
    _children: Children = field(default_factory=Children)
    _restarted: dict[str, int] = field(default_factory=dict)
    _ended: dict[str, int] = field(default_factory=dict)  # for good, with these statuses
    _begun: dict[str, float] = field(default_factory=dict)
    _ending: bool = False

    def run(self) -> int:
        """Starts all, and returns the exit status once all have ended for good.

        0 if all have ended with 0, or were still joining when others did; 128 + the number of a
        signal that stopped this process; that of a worker that failed and was not started again;
        3 if it was killed. A worker that fails before it has joined the others ends all.
        """
        children = self._children
        with children.signals_passed_on():
            self._begun = dict.fromkeys(self.names, time.monotonic())
            children.start(self.command, [self.environment(name, False) for name in self.names])
            is_open = False
            while len(self._ended) < len(self.names):
                for place, name in enumerate(self.names):
                    code = children.children[place].poll()
                    if name not in self._ended and code is not None:
                        self._after(place, name, code)
                if not is_open and (self._ended or self._all_made()):
                    self.gate.set(OPEN, "")
                    is_open = True
                children.kill_overdue()
                time.sleep(POLL_SECONDS)
        return self._status()

    def _all_made(self) -> bool:
        return any(self._restarted.values()) or self.gate.check([*map(made_key, self.names)])

    def _after(self, place: int, name: str, code: int) -> None:
        """A worker has ended: with success, for good, or to be started again."""
        if code == 0 or self._ending or self._children.stopped_by is not None:
            if code == 0 and 0 not in self._ended.values():
                self.gate.set(OVER, "")
            self._ended[name] = code
            if code == 0:
                self._end_those_who_come_too_late()
            return
        done = self._restarted.get(name, 0)
        seconds = time.monotonic() - self._begun[name]
        what = f"{name} (pid {self._children.children[place].pid}) {how_ended(code)} after "
        what += f"{seconds:.0f} s"
        if code > 0 and not self.gate.check([joined_key(name)]):
            say(f"{what}, before it had joined the others, and is not started again")
            self._ended[name] = code
            self._ending = True
            self._children.send(signal.SIGTERM)
        elif 0 in self._ended.values():
            say(f"{what}, when others had ended already, and is not started again")
            self._ended[name] = code
        elif done == self.restarts:
            say(f"{what}, and is not started again (--restarts {self.restarts})")
            self._ended[name] = code
        else:
            say(f"{what}, and is started again ({done + 1} of {self.restarts})")
            self._restarted[name] = done + 1
            self._begun[name] = time.monotonic()
            self.gate.delete_key(joined_key(name))
            self._children.put(place, self.command, self.environment(name, True))

    def _end_those_who_come_too_late(self) -> None:
        """A worker that has not joined by now would wait for others that don't come."""
        for place, name in enumerate(self.names):
            late = self._restarted.get(name) and not self.gate.check([joined_key(name)])
            if late and name not in self._ended:
                child = self._children.children[place]
                say(f"{name} (pid {child.pid}) is ended: it had not joined when others were done")
                child.kill()
                child.wait()
                self._ended[name] = 0

    def _status(self) -> int:
        again = [f"{name} {plural(n, 'time')}" for name, n in self._restarted.items()]
        if again:
            say(f"all have ended; started again: {', '.join(again)}")
        if (number := self._children.stopped_by) is not None:
            return 128 + number
        failed = [code for code in self._ended.values() if code]
        if not failed:
            return 0
        return next((code for code in failed if code > 0), PEER_LOST_EXIT)
