"""Who is there at a sync, who has something to average, and what the run has come to since.

Workers come and go; syncs are numbered by those that counted. At every sync each worker says in a
`Standing` where it is, and all draw the same conclusions from all of them.

Data goes by batches that are handed out: in a round, the worker of rank k of K takes the batches
`given + t K + k` for its local steps t = 0, 1, ... Those of a worker that is lost in the round
count as handed out. So no batch is read twice, whatever K is, and the run advances by data:
`step` is `given / workers`, at which schedules look.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from localsgd.basics.messages import read_message
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.wire.contributors import Contributors
from localsgd.wire.engine import Broken, Engine, Peers

logger = logging.getLogger("localsgd")

ALIKE = (
    "start this worker with the same model (frozen parts included), optimizer, local_steps, "
    "reducer and outer"
)
"""What a worker that does not fit has to do."""
STANDING_BYTES = 1024
"""Of a standing on the wire, as JSON."""


@dataclass(frozen=True)
class Standing:
    """Where a worker is when a sync begins.

    Args:
        name: unique, also among processes that have had the same name one after another.
        alike: a digest of model and settings.
        syncs: that it has seen count.
        trained: whether it has taken local steps from the model of that sync, or might have.
        holds: whether it has that model.
        finite: whether its own model is finite.
        steps: local steps since that sync.
        given: batches handed out up to that sync.
        leaves: whether it goes after this sync.
        memory: the norm of its error memory.
    """

    name: str
    alike: str
    syncs: int
    trained: bool
    holds: bool
    finite: bool
    steps: int
    given: int
    leaves: bool
    memory: float

    def packed(self) -> Tensor:
        """As bytes, `[STANDING_BYTES]`."""
        text = json.dumps(asdict(self)).encode()
        if len(text) > STANDING_BYTES:
            raise UserError(f"the name {self.name!r} of a worker is too long; give a shorter one")
        return torch.tensor(list(text.ljust(STANDING_BYTES)), dtype=torch.uint8)

    @staticmethod
    def of(packed: Tensor, rank: int) -> Standing:
        """The standing that a rank has `packed`."""
        return read_message(bytes(packed.tolist()), Standing, f"rank {rank}")


@dataclass(frozen=True)
class Meeting:
    """What all workers of a sync know of each other, by rank.

    Args:
        peers: the workers.
        standings: theirs.
    """

    peers: Peers
    standings: tuple[Standing, ...]

    @property
    def own(self) -> Standing:
        return self.standings[self.peers.rank]

    @property
    def last(self) -> int:
        """The last sync that anybody knows of."""
        return max(s.syncs for s in self.standings)

    def _ranks(self, holds: Any) -> list[int]:
        return [r for r, s in enumerate(self.standings) if s.syncs == self.last and holds(s)]

    @property
    def contributors(self) -> list[int]:
        return self._ranks(lambda s: s.trained and s.finite)

    @property
    def holders(self) -> list[int]:
        return self._ranks(lambda s: s.holds and s.finite)

    @property
    def has_guests(self) -> bool:
        return len(self.contributors) < len(self.standings)

    @property
    def contributors_names(self) -> list[str]:
        return [self.standings[rank].name for rank in self.contributors]

    @property
    def stayers(self) -> list[int]:
        """Contributors that stay."""
        return [rank for rank in self.contributors if not self.standings[rank].leaves]


@dataclass(frozen=True)
class Change:
    """K has changed.

    Args:
        sync: since this one, counted from 1.
        before, now: K.
        left, joined: names.
        text: the line in the log.
    """

    sync: int
    before: int
    now: int
    left: tuple[str, ...]
    joined: tuple[str, ...]
    text: str


@dataclass
class Membership:
    """The workers of the run, as this one knows them.

    Args:
        engine: finds out who is there.
        alike: a digest of model and settings, which all must share.
        not_finite: what becomes of a sync in which a worker's model is not finite.

    Attributes:
        names: of the workers of this round, by rank.
        rank: of this worker among them.
        averaged: the names of those whose updates the last mean had.
        given: batches handed out before this round.
        round_steps: local steps of this worker in this round.
        trained, holds: as in `Standing`.
        changes: of K, as far as this worker has seen them.
        left: whether this worker has left.
    """

    engine: Engine
    alike: str
    not_finite: str = "error"
    names: list[str] = field(default_factory=list)
    rank: int = 0
    averaged: list[str] = field(default_factory=list)
    given: int = 0
    round_steps: int = 0
    trained: bool = False
    holds: bool = True
    changes: list[Change] = field(default_factory=list)
    left: bool = False

    def __post_init__(self) -> None:
        self.collective = Contributors()
        self.name = f"{self.engine.name}:{uuid.uuid4().hex[:8]}"
        self.holds = self.holds and self.engine.begins
        self._planned = self.engine.workers
        self._leaves = False
        self._memories: dict[str, float] = {}  # norms, as last told

    @property
    def workers(self) -> int:
        """K of this round."""
        return max(1, len(self.names))

    @property
    def syncs(self) -> int:
        """Syncs that have counted since the run began, the one that made models equal included."""
        return self.engine.syncs

    @property
    def step(self) -> int:
        """The step of a run with the planned K at which as many batches are handed out."""
        return self.given // (self._planned or self.workers)

    @property
    def batch(self) -> int:
        """The number of the batch that is this worker's next, counted from 0 over the whole run."""
        return self.given + self.round_steps * self.workers + self.rank

    def stepped(self) -> None:
        """This worker has taken a local step."""
        if self.left:
            raise UserError(
                f"{self.name} has left the run, and can't train on; end the loop once "
                "optimizer.membership.left is true"
            )
        self.round_steps += 1

    def leave(self) -> None:
        """This worker hands over what it has at the next sync, and takes part in none after it."""
        self._leaves = True

    # A sync.

    def meet(self, finite: bool, memory: float) -> Meeting:
        """All who are in this sync, which may be others at every call.

        Args:
            finite: whether this worker's model is.
            memory: the norm of its error memory.
        """
        peers = self.engine.meet()  # This worker's state may be loaded here.
        own = Standing(
            self.name,
            self.alike,
            self.engine.syncs,
            self.trained,
            self.holds,
            finite,
            self.round_steps,
            self.given,
            self._leaves,
            memory,
        )
        meeting = Meeting(peers, self._read(peers.gather(own.packed())))
        self._check_finite(meeting)
        self._check_alike(meeting)
        self.collective.join(peers, meeting.contributors or meeting.holders[:1])
        return meeting

    def _read(self, packed: Iterable[Tensor]) -> tuple[Standing, ...]:
        try:
            return tuple(Standing.of(one, rank) for rank, one in enumerate(packed))
        except UserError as error:
            if self.trained:  # Who came with another version can't read this worker's either.
                raise Broken(str(error)) from error
            raise

    def _check_finite(self, meeting: Meeting) -> None:
        bad = [s.name for s in meeting.standings if s.trained and not s.finite]
        if not bad:
            return
        message = f"{', '.join(bad)} had weights that are not finite at sync {meeting.last + 1}"
        if not meeting.contributors:
            raise UserError(
                f"{message}, and nobody else has trained; start all again from the last saved "
                "state, with a lower learning rate or clipped gradients"
            )
        if self.not_finite == "error":
            raise UserError(
                f"{message}; lower the learning rate or clip gradients, or let such workers go on "
                'from the mean of the others by not_finite="leave_out"'
            )
        if self.name == meeting.standings[meeting.contributors[0]].name:
            logger.warning("%s, and go on from the mean of the others", message)

    def _check_alike(self, meeting: Meeting) -> None:
        if not meeting.holders:
            raise UserError(
                f"no worker is left that holds the model of sync {meeting.last}; start all again "
                "from the last saved state"
            )
        right = meeting.standings[(meeting.contributors or meeting.holders)[0]]
        others = [s.name for s in meeting.standings if s.alike != right.alike]
        if self.name in others:
            raise UserError(
                f"this worker has another model or other settings than {right.name}, with which "
                f"the run goes on; {ALIKE}"
            )
        if others:
            raise Broken(f"{', '.join(others)} came with another model or other settings")

    def changed(self, meeting: Meeting) -> bool:
        """Whether others are averaged than at the last sync, or have to learn the result."""
        return meeting.has_guests or meeting.contributors_names != self.averaged

    def committed(self, meeting: Meeting) -> None:
        """The sync counts: the next round begins, with all who are here and stay."""
        standings = meeting.standings
        there = [s.name for s in standings if not s.leaves]
        told = self._change(meeting, there)
        last = [standings[rank] for rank in meeting.contributors or meeting.holders[:1]]
        # A guest's K is that of the others, which it was told by `load`.
        self.given = max(s.given for s in last) + max(s.steps for s in last) * self.workers
        self.averaged = meeting.contributors_names
        self._memories = {s.name: s.memory for s in standings}
        self.names = there
        self._planned = self._planned or len(there)
        self.round_steps, self.trained, self.holds = 0, True, True
        if self.name in there:
            self.rank = there.index(self.name)
        else:
            self.left = True
            self.engine.leave()
        if told is not None:
            self.changes.append(told)
            if there[:1] == [self.name]:
                logger.warning(told.text)

    def _change(self, meeting: Meeting, there: Sequence[str]) -> Change | None:
        """What there is to say if K, or who they are, has changed. Equal on all who were there."""
        left = tuple(name for name in self.names if name not in there)
        joined = tuple(name for name in there if name not in self.names)
        if not left and not joined:
            return None
        sync, before, now = self.engine.syncs, len(self.names), len(there)
        by_name = {s.name: s for s in meeting.standings}
        words = [f"sync {sync}: K = {before} -> {now}"]
        words += [self._farewell(name, by_name.get(name), sync) for name in left]
        if joined and before:
            rule = "copied" if self.engine.momenta == "copy" else "new"
            words.append(f"{', '.join(joined)} joined with the model of this sync, momenta {rule}")
        words.append(f"means divide by {now} from now on")
        return Change(sync, before, now, left, joined, "; ".join(words))

    def _farewell(self, name: str, standing: Standing | None, sync: int) -> str:
        if standing is not None:
            return f"{name} left, and what it had is with the others"
        memory = self._memories.get(name, 0.0)
        lost = f" and its error memory (norm {memory:.3g} when it last told)" if memory else ""
        return f"{name} is gone, and its local steps since sync {sync - 1}{lost} with it"

    # What a worker that is behind gets, and a saved run.

    def state(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "averaged": list(self.averaged),
            "given": self.given,
            "planned": self._planned,
            "memories": dict(self._memories),
        }

    def load(self, state: dict[str, Any]) -> None:
        """This worker goes on from what another had at its last sync."""
        if self.round_steps:
            logger.warning(
                f"{self.name} was left behind; it drops {plural(self.round_steps, 'local step')} "
                "and goes on with the others' next mean"
            )
        self.names, self.averaged = list(state["names"]), list(state["averaged"])
        self.given, self._planned = state["given"], state["planned"]
        self._memories = dict(state["memories"])
        self.round_steps, self.trained = 0, False

    def saved(self) -> dict[str, Any]:
        """All that a run that is started again needs."""
        own = {"round_steps": self.round_steps, "trained": self.trained}
        return {**self.state(), **own, "engine": self.engine.state()}

    def resume(self, saved: dict[str, Any]) -> None:
        """Goes on from what was `saved` at the same step by this worker, with those who are there
        now, in the midst of a round with those who were there.
        """
        steps, before = saved["round_steps"], max(1, len(saved["names"]))
        self.averaged, self._planned = list(saved["averaged"]), saved["planned"]
        self.given = saved["given"] + steps * (before - self.workers)
        self.round_steps, self.trained, self.holds = steps, saved["trained"], True
        self.engine.load(saved["engine"])
