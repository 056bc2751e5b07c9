"""The mean of compressed updates, with error feedback.

    v_k <- u_k + e_k,   e_k <- v_k - C(v_k),   result: mean_k C(v_k)

Lin et al. 2020, Algorithm 4, and Algorithm 3 without e; each member has its own memory. Payloads
are sent in one of two ways:

- `gather`: every member receives all payloads and takes the mean of the vectors they encode, which
  is the paper's average; (M - 1) c bytes received.
- `two-phase`: member j owns the j-th of M chunks, decodes all its payloads, takes their mean and
  compresses it again, with a second memory, before all gather the chunks (Tang et al. 2019,
  DoubleSqueeze); 2 c (M - 1)/M bytes received, and a byte from each other member that says
  whether its own update is finite.

What is sent and what is kept add up to the updates: M · result + sum_k e_k, plus M times the
owners' memories, grows by sum_k u_k at every sync. Unequal weights first scale the updates to
M · weight · u_k. Rows in half precision, and their memories, are processed in float32; payloads
have the same size.

Shapes: g groups · m members hosted here · M members · n scalars of a row · c bytes of a payload ·
s scalars of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.basics.units import plural
from localsgd.errors import UserError, unknown_name
from localsgd.reduce.compressor import (
    Codec,
    Compressor,
    check_dtype,
    faulty,
    first_fault,
    keeps,
    read,
)
from localsgd.reduce.extents import Extents, parts
from localsgd.reduce.memory import check_saved, memory_at, places_of, reduced_wide, refusal
from localsgd.reduce.reducer import Reducer
from localsgd.rows.layout import Layout
from localsgd.wire.collective import Collective, Pending

Way = Literal["auto", "gather", "two-phase"]
WAYS = ("auto", "gather", "two-phase")

SMALL = 1 << 16
"""Bytes of all others' payloads up to which gathering is faster than two phases."""


class Chunk(NamedTuple):
    """Scalars `[start, stop)` of a vector that are compressed separately."""

    start: int
    stop: int
    codec: Codec

    def encode(
        self, x: Tensor, error: Tensor | None, payload: Tensor, draw: torch.Generator | None
    ) -> None:
        """Writes the `payload [>= c]` of this chunk of x [n].

        The memory `error [n]`, if any, is added first; it then keeps what the payload loses.
        """
        x, payload = x[self.start : self.stop], payload[: self.codec.size]
        if error is None:
            self.codec.encode(x, payload, draw)
            return
        error = error[self.start : self.stop]
        if keeps(self.codec):
            self.codec.keep(x, error, payload)
        else:
            self.codec.encode(error.add_(x), payload, draw)
            self.codec.add(payload, error, -1.0)

    def read(self, payloads: Tensor, out: Tensor) -> None:
        """Sets this chunk of `out` to the sum of the decoded `payloads [P, >= c]`."""
        read(self.codec, payloads[:, : self.codec.size], out[self.start : self.stop])

    def own(self, payload: Tensor) -> tuple[Codec, Tensor]:
        """The codec of a `payload [>= c]`, and the payload cut to its length."""
        return self.codec, payload[: self.codec.size]


class CompressedMean(Reducer):
    """Reduces updates to the mean of the compressed updates.

    Args:
        compressor: compresses vectors.
        feedback: whether what a payload lost is added to the next update.
        way: how payloads are sent; `auto` gathers if M <= 2 or payloads are small.
        layout: of the tensors in a row, or in the part of a row that is reduced here; if not given,
            a row counts as one tensor.

    State by member: `error [g, m, n]`; `owner_error [g, m, s]` of the chunk that it owns; `place
    [g, m]`, its index among the M members, which it learns at the first sync.
    """

    only_reads = True  # unless there are weights
    members_may_change = True

    def __init__(
        self,
        compressor: Compressor,
        *,
        feedback: bool = True,
        way: Way = "auto",
        layout: Layout | Extents | None = None,
    ) -> None:
        if way not in WAYS:
            raise unknown_name("way over the wire", way, WAYS)
        self.compressor = compressor
        self.feedback = feedback
        self.way: Way = way
        self._fragments = Extents.of(layout) if isinstance(layout, Layout) else layout
        self._syncs = 0
        self._memory: dict[str, Tensor] = {}
        self._places: list[int] = []  # indices of the hosted members, copied once to the CPU
        self._chunks: dict[tuple[int, torch.dtype, int], list[Chunk]] = {}
        self._spare: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"CompressedMean({self.compressor!r}, feedback={self.feedback}, way={self.way!r})"

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        check_dtype(update.dtype)
        return reduced_wide(self._reduced, update, weights, collective)

    def _reduced(self, update: Tensor, collective: Collective) -> Pending[Tensor]:
        if "place" not in self._memory:
            self._memory["place"] = places_of(update, collective)
        self._places = self._places or self._memory["place"][0].tolist()
        self._syncs += 1
        if self._gathers(update, collective.members):
            return self._gathered(update, collective)
        return self._in_two_phases(update, collective)

    def _gathers(self, update: Tensor, members: int) -> bool:
        if self.way != "auto":
            return self.way == "gather"
        [whole] = self._cut(update, 1)
        return gathers(members, whole.codec.size)

    def _gathered(self, update: Tensor, collective: Collective) -> Pending[Tensor]:
        chunks = self._cut(update, 1)
        sent = self._sent("error", update, [chunks] * update.shape[1], _size(chunks))
        pending = collective.gather(sent[:, :, 0])

        def finish() -> Tensor:
            received = pending.wait()  # [g, M, c]
            self._spare["error"] = sent
            tensor = _fault(received, chunks * collective.members)
            if tensor is not None:
                [whole] = chunks
                flags = [[whole.codec.fault(own) is not None for own in of] for of in received]
                raise refusal(tensor, torch.tensor(flags))
            means = update[:, 0]
            for mean, payloads in zip(means, received, strict=True):
                chunks[0].read(payloads, mean)
            return means.div_(collective.members)

        return Pending(finish)

    def _in_two_phases(self, update: Tensor, collective: Collective) -> Pending[Tensor]:
        chunks = self._cut(update, collective.members)
        size = _size(chunks)
        sent = self._sent("error", update, [chunks] * update.shape[1], size)  # [g, m, M, c]
        owned = [chunks[place] for place in self._places]
        own = [Chunk(0, stop - start, codec) for start, stop, codec in owned]
        received = collective.exchange(sent).wait()  # [g, m, M, c], of this member's own chunk
        means = update.new_zeros((*update.shape[:2], chunks[0].stop))  # [g, m, s]
        for sums, payloads in zip(means, received, strict=True):
            for chunk, total, of_chunk in zip(own, sums, payloads, strict=True):
                chunk.read(of_chunk, total)
        means /= collective.members
        # The last byte tells all others whether this member's own update is finite.
        again = self._sent("owner_error", means, [[chunk] for chunk in own], size + 1)
        for payloads, by_member in zip(sent, again, strict=True):
            for of_member, into in zip(payloads, by_member, strict=True):
                into[0, -1] = faulty(_owned(of_member, chunks), into)
        pending = collective.gather(again[:, :, 0])

        def finish() -> Tensor:
            payloads = pending.wait()  # [g, M, c + 1]
            self._spare |= {"error": sent, "owner_error": again}
            tensor = _fault(payloads, chunks)
            if tensor is not None:
                raise refusal(tensor, payloads[..., -1])
            result = update[:, 0]
            for row, of_row in zip(result, payloads, strict=True):
                for chunk, payload in zip(chunks, of_row.unsqueeze(1), strict=True):
                    chunk.read(payload, row)
            return result

        return Pending(finish)

    def _cut(self, update: Tensor, count: int) -> list[Chunk]:
        """The row cut into `count` chunks, the first of which is the longest."""
        n, dtype = update.shape[-1], update.dtype
        if (n, dtype, count) not in self._chunks:
            row = self._fragments or Extents.whole(n)
            if row.length != n:
                raise UserError(
                    f"the layout is of rows of {plural(row.length, 'scalar')}, not of {n}"
                )
            length, cut = parts(row, count)
            self._chunks[n, dtype, count] = [
                Chunk(
                    min(n, index * length),
                    min(n, index * length) + part.length,
                    self.compressor.codec(part, dtype),
                )
                for index, part in enumerate(cut)
            ]
        return self._chunks[n, dtype, count]

    def _sent(
        self, memory: str, vectors: Tensor, chunks: Sequence[Sequence[Chunk]], size: int
    ) -> Tensor:
        """Payloads `[g, m, chunks, size]` of `vectors [g, m, ...]`; what they lose is remembered.

        Args:
            memory: the name of the memory.
            chunks: of each hosted member's vector.
        """
        shape = (*vectors.shape[:2], len(chunks[0]), size)
        # The buffer of the last sync, if it is free: new memory costs a page fault per page.
        sent = self._spare.pop(memory, None)
        if sent is None or sent.shape != shape or sent.device != vectors.device:
            sent = torch.zeros(shape, dtype=torch.uint8, device=vectors.device)
        kept = (
            self._remembered(memory, vectors) if self.feedback else [[None] * shape[1]] * shape[0]
        )
        for group, errors, payloads in zip(vectors, kept, sent, strict=True):
            hosted = zip(group, errors, self._places, chunks, payloads, strict=True)
            for vector, error, place, own, into in hosted:
                draw = self._draw(memory, place)
                for chunk, payload in zip(own, into, strict=True):
                    chunk.encode(vector, error, payload, draw)
        return sent

    def _remembered(self, memory: str, vectors: Tensor) -> Tensor:
        kept = self._memory.get(memory)
        kept = torch.zeros_like(vectors) if kept is None else memory_at(kept, vectors)
        self._memory[memory] = kept
        return kept

    def _draw(self, purpose: str, place: int) -> torch.Generator | None:
        """A generator that depends on seed, sync and member alone; groups draw equal numbers."""
        seed = self.compressor.seed
        return None if seed is None else generator_for(seed, purpose, self._syncs, place)

    def bound(self, layout: Layout) -> CompressedMean:
        """A new copy that knows `layout`, unless it was made with one."""
        return self._with(self._fragments or Extents.of(layout))

    def part(self, start: int, stop: int) -> CompressedMean:
        """A new copy for scalars `[start, stop)` of the row."""
        return self._with(self._fragments and self._fragments.part(start, stop))

    def _with(self, fragments: Extents | None) -> CompressedMean:
        return CompressedMean(
            self.compressor, feedback=self.feedback, way=self.way, layout=fragments
        )

    def regroup(self, before: int, now: int) -> None:
        """e_k <- now / before · (e_k + before · o_k), with o_k its memory as an owner of a chunk.

        The next mean gets e_k / now, where it would have got e_k / before and o_k, which it got
        whole. Chunks are of other lengths then, so their owners begin anew.
        """
        owned = self._memory.pop("owner_error", None)
        place = self._memory.pop("place", None)
        error = self._memory.get("error")
        self._places = []
        if not before:
            self._memory.clear()
            self._syncs = 0
        elif error is not None:
            if owned is not None and place is not None:
                chunks = self._cut(error, before)
                for errors, chunk_errors, places in zip(error, owned, place.tolist(), strict=True):
                    for own, of_chunk, index in zip(errors, chunk_errors, places, strict=True):
                        start, stop, _ = chunks[index]
                        own[start:stop] += before * of_chunk[: stop - start]
            error *= now / before

    def state(self) -> dict[str, Any]:
        return {"feedback": self.feedback, "syncs": self._syncs, **self._memory}

    def load(self, state: dict[str, Any]) -> None:
        self._memory = {k: value.clone() for k, value in state.items() if isinstance(value, Tensor)}
        self._places = []
        self._syncs = state.get("syncs", 0)
        check_saved(state, self.feedback, complete="error" in state or not self._syncs)


def gathers(members: int, size: float) -> bool:
    """Whether M payloads of `size` bytes are gathered if the way is `auto`."""
    return members <= 2 or (members - 1) * size <= SMALL


def _size(chunks: Sequence[Chunk]) -> int:
    """The largest payload of a chunk, in bytes."""
    return max(chunk.codec.size for chunk in chunks)


def _owned(payloads: Tensor, chunks: Sequence[Chunk]) -> Iterator[tuple[Codec, Tensor]]:
    """The codecs of `payloads [P, >= c]` of P chunks, and the payloads cut to their lengths."""
    return (chunk.own(payload) for chunk, payload in zip(chunks, payloads, strict=True))


def _fault(received: Tensor, chunks: Sequence[Chunk]) -> str | None:
    """The name of the first tensor in payloads `[g, P, >= c]` of P chunks that is not finite.

    All processes have received the same payloads, so all find it, and none waits for another.
    """
    return first_fault(owned for payloads in received for owned in _owned(payloads, chunks))
