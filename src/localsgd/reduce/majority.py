"""Majority vote for signSGD.

    result = (mean_k ||u_k||_1 / d) · sign(sum_k sign(u_k)),   a tie gives 0

(Bernstein et al. 2018, Algorithm 3, with a scale, so that models keep the size of their steps.)
sign(0) = +1 in a vote, as in `Sign`; a tie gives 0, since any other rule would drift. There is no
error feedback: members do not know what a vote has lost of theirs.

Shapes: g groups · M members · n scalars of a row · s scales · c bytes of a payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from localsgd.reduce.compressor import encode, first_fault
from localsgd.reduce.extents import Extents
from localsgd.reduce.memory import reduced_wide, refusal
from localsgd.reduce.reducer import Reducer
from localsgd.reduce.sign import Sign, SignCodec
from localsgd.rows.layout import Layout
from localsgd.wire.collective import Collective, Pending


@dataclass(frozen=True)
class MajorityVote(Reducer):
    """The sign that most members have, scaled by the mean of their scales; payloads are gathered.

    Args:
        sign: says how many scalars share a scale.
        layout: of the tensors in a row; if not given, a row counts as one tensor.
    """

    sign: Sign = field(default_factory=Sign)
    layout: Layout | Extents | None = field(default=None, repr=False)

    only_reads = True
    members_may_change = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        """Reduces as `Reducer.reduce`. Weights apply to the scales; every member has one vote."""
        return reduced_wide(self._reduced, update, weights, collective)

    def _reduced(self, update: Tensor, collective: Collective) -> Pending[Tensor]:
        n = update.shape[-1]
        fragments = self._fragments or Extents.whole(n)
        codec = self.sign.codec(fragments, update.dtype)
        sent = encode(codec, update)
        pending = collective.gather(sent)

        def finish() -> Tensor:
            received = pending.wait()  # [g, M, c]
            tensor = first_fault((codec, payload) for payload in received.flatten(0, 1))
            if tensor is not None:
                flags = [[codec.fault(p) is not None for p in group] for group in received]
                raise refusal(tensor, torch.tensor(flags))
            for result, payloads in zip(update[:, 0].zero_(), received, strict=True):
                _vote(codec, payloads, result)
            return update[:, 0]

        return Pending(finish)

    @property
    def _fragments(self) -> Extents | None:
        return Extents.of(self.layout) if isinstance(self.layout, Layout) else self.layout

    def bound(self, layout: Layout) -> MajorityVote:
        """One that knows `layout`, unless it was made with one."""
        return self if self.layout else replace(self, layout=layout)

    def part(self, start: int, stop: int) -> MajorityVote:
        """One for scalars `[start, stop)` of the row."""
        fragments = self._fragments
        return replace(self, layout=fragments and fragments.part(start, stop))


def _vote(codec: SignCodec, payloads: Tensor, result: Tensor) -> None:
    """Writes the result of the vote of `payloads [M, c]` into `result [n]`, which is zero."""
    scales = codec.scales_of(payloads)
    codec.add_scaled(payloads, result, torch.ones_like(scales))
    means = [sum(own) / len(scales) for own in scales.T.tolist()]
    codec.scale_in_place(result.sign_(), means)
