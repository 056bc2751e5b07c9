"""What every compressor promises: its payloads, and what they stand for.

Shapes: n scalars of a vector · c bytes of a payload · M members.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.reduce.compressed import Chunk, CompressedMean
from localsgd.reduce.compressor import Codec, Compressor, decode, encode, read
from localsgd.reduce.extents import Extents
from localsgd.testing.comparing import (
    LAYOUT,
    ROW,
    drawn,
    masked,
    near,
    refused,
    same_bits,
    settings_of,
    updates,
)
from localsgd.wire import InProcess

DTYPES = (torch.float32, torch.float64)
DRAWS = 400
"""Draws between two looks at how sure their mean is."""
MOST_DRAWS = 10_000
SLOPE = 0.1
"""The mean of C(x) along x is known to so much of x before it is judged."""
SIGMAS = 4.5


def check_compressor(compressor: Compressor) -> None:
    """Asserts that `compressor` can stand in `CompressedMean`.

    Payloads have the size that is stated and depend on the vector and the draw alone; adding,
    reading and keeping are the same thing said differently; padding and zeros stay zero; NaN and
    infinity are found; what is sent and what is kept add up to what was given.
    """
    for check in CHECKS:
        check(compressor)


def _payloads_have_the_size_that_is_stated(compressor: Compressor) -> None:
    for n in range(1, 71):
        x = drawn(n, seed=n)
        codec = compressor.codec(Extents.whole(n), x.dtype)
        payload = encode(codec, x)
        assert payload.shape == (codec.size,), (
            f"a payload of {plural(len(payload), 'byte')}, not {codec.size}"
        )
        found = decode(codec, payload, x)
        assert found.shape == x.shape, f"{n} scalars come back as {tuple(found.shape)}"
        assert found.isfinite().all(), f"{n} finite scalars come back with NaN or infinity"


def _payloads_depend_on_the_vector_and_the_draw_alone(compressor: Compressor) -> None:
    """Also where another payload was written before, as memory is used again."""
    for dtype in DTYPES:
        codec = compressor.codec(ROW, dtype)
        other = compressor.codec(ROW, dtype)
        for seed in (None, 1):
            used = _encoded(codec, updates(seed=2, dtype=dtype), seed)
            codec.encode(updates(dtype=dtype), used, _draw(seed))
            fresh = _encoded(other, updates(dtype=dtype), seed)
            same_bits(used, fresh, "a payload differs with what was in its memory before")


def _leaves_the_vector_as_it_was(compressor: Compressor) -> None:
    x = updates()
    _encoded(compressor.codec(ROW, x.dtype), x, 1)
    same_bits(x, updates(), "encode() writes into the vector")


def _adds_a_multiple(compressor: Compressor) -> None:
    x, out = updates(), updates(seed=2)
    codec = compressor.codec(ROW, x.dtype)
    payload = encode(codec, x)
    expected = out - 0.25 * decode(codec, payload, x)
    codec.add(payload, out, -0.25)
    near(out, expected, "add(payload, out, factor) is not out + factor * what the payload is")


def _reading_is_adding_to_zeros(compressor: Compressor) -> None:
    for dtype in DTYPES:
        x, out = updates(2, dtype=dtype), drawn(LAYOUT.length, seed=2, dtype=dtype)
        codec = compressor.codec(ROW, dtype)
        payloads = encode(codec, x)
        added = torch.zeros_like(x[0])
        for payload in payloads:
            codec.add(payload, added)
        read(codec, payloads, out)
        same_bits(out, added, "read() gives other bits than add() to zeros")


def _keeping_is_encoding_and_taking_off(compressor: Compressor) -> None:
    for dtype in DTYPES:
        x, error = updates(dtype=dtype), updates(seed=2, dtype=dtype)
        codec = compressor.codec(ROW, dtype)
        payload = encode(codec, updates(seed=3, dtype=dtype))
        expected = error + x
        sent = encode(codec, expected)
        codec.add(sent, expected, -1.0)
        Chunk(0, ROW.length, codec).encode(x, error, payload, None)
        same_bits(payload, sent, "keep() sends another payload than encode()")
        same_bits(error, expected, "keep() keeps other bits than encode() and add() leave")


def _zeros_stay_zeros(compressor: Compressor) -> None:
    x = updates()
    codec = compressor.codec(ROW, x.dtype)
    found = decode(codec, encode(codec, x), x)
    assert not found[~masked(ROW)].any(), "padding does not stay zero"
    nothing = decode(codec, encode(codec, torch.zeros_like(x)), x)
    assert not nothing.any(), "a vector of zeros does not stay one: a tensor at rest would move"


def _takes_rows_in_half_precision(compressor: Compressor) -> None:
    x = updates(dtype=torch.bfloat16)
    codec, wide = (compressor.codec(ROW, dtype) for dtype in (torch.bfloat16, torch.float32))
    found = decode(codec, encode(codec, x), x)
    expected = decode(wide, encode(wide, x.float()), x.float())
    assert found.dtype == torch.bfloat16, f"bfloat16 comes back as {found.dtype}"
    for start, stop, name in ROW.fragments:
        largest = float(expected[start:stop].abs().max()) or 1.0
        near(
            found[start:stop].float() / largest,
            expected[start:stop] / largest,
            f"{name} of a bfloat16 row stands for something else than in float32",
            2**-6,
        )


def _finds_what_is_not_finite(compressor: Compressor) -> None:
    for value in (math.nan, math.inf, -math.inf):
        x = updates()
        codec = compressor.codec(ROW, x.dtype)
        fault = codec.fault(encode(codec, x))
        assert fault is None, f"fault() says {fault!r} of a finite vector"
        x[ROW.fragments[3].start + 7] = value
        fault = codec.fault(encode(codec, x))
        assert fault is not None, f"fault() does not find {value}: the run would go on with garbage"


def _refuses_integers(compressor: Compressor) -> None:
    refused(UserError, lambda: compressor.codec(ROW, torch.int64), "a codec for int64")


def _is_unbiased_if_it_says_so(compressor: Compressor) -> None:
    """Along a random direction, and along the vector itself, in which C(x) has its length."""
    if not compressor.unbiased:
        return
    x = updates()
    codec = compressor.codec(ROW, x.dtype)
    probes = torch.stack([drawn(LAYOUT.length, seed=7), x / x.square().sum()])
    found: list[Tensor] = []
    while True:
        draws = (
            range(len(found), len(found) + DRAWS) if compressor.seed is not None else (None,) * 2
        )
        found += [probes @ (decode(codec, _encoded(codec, x, seed), x) - x) for seed in draws]
        errors = torch.stack(found)
        sure = errors.std(0) / math.sqrt(len(found))
        if compressor.seed is None or float(sure[1]) < SLOPE or len(found) >= MOST_DRAWS:
            break
    for mean, allowed in zip(errors.mean(0).tolist(), (SIGMAS * sure + 1e-9).tolist(), strict=True):
        assert abs(mean) <= allowed, (
            f"it says unbiased, but the mean error of {len(found)} draws along one direction is "
            f"{mean:.3g}, more than the {allowed:.3g} that chance explains"
        )


def _takes_a_part_without_scalars(compressor: Compressor) -> None:
    """As a member has it whose part of a row is padding alone."""
    codec = compressor.codec(Extents(64, ()), torch.float64)
    nothing = torch.zeros(64, dtype=torch.float64)
    payload = encode(codec, nothing)
    assert payload.shape == (codec.size,), f"a payload of {len(payload)} bytes, not {codec.size}"
    assert not decode(codec, payload, nothing).any(), "a part without scalars does not stay zero"
    assert codec.fault(payload) is None, "fault() finds something in a part without scalars"


def _sent_and_kept_is_given(compressor: Compressor) -> None:
    for way in ("gather", "two-phase"):
        reducer = CompressedMean(compressor, way=way, layout=LAYOUT)  # type: ignore[arg-type]
        sent = given = torch.zeros(2, LAYOUT.length, dtype=torch.float64)
        for sync in range(3):
            x = updates(2, 4, seed=sync)
            given = given + x.sum(1)
            sent = sent + 4 * reducer.reduce(x, None, InProcess(4)).wait()
        near(
            sent + kept(reducer, LAYOUT.length, 4), given, f"{way}: sent + kept is not given", 1e-10
        )


def _says_its_settings(compressor: Compressor) -> None:
    assert settings_of(copy.deepcopy(compressor)) == settings_of(compressor), (
        "repr() differs by copy"
    )


CHECKS = (
    _payloads_have_the_size_that_is_stated,
    _payloads_depend_on_the_vector_and_the_draw_alone,
    _leaves_the_vector_as_it_was,
    _adds_a_multiple,
    _reading_is_adding_to_zeros,
    _keeping_is_encoding_and_taking_off,
    _zeros_stay_zeros,
    _takes_rows_in_half_precision,
    _finds_what_is_not_finite,
    _refuses_integers,
    _is_unbiased_if_it_says_so,
    _takes_a_part_without_scalars,
    _sent_and_kept_is_given,
    _says_its_settings,
)


def kept(reducer: CompressedMean, n: int, members: int) -> Tensor:
    """All memories of a group, as the sum of updates that they stand for: `[g, n]`."""
    state = reducer.state()
    total = state["error"].sum(1)
    if "owner_error" in state:
        total = total + members * state["owner_error"].flatten(1)[:, :n]
    return total


def _draw(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def _encoded(codec: Codec, x: Tensor, seed: int | None) -> Tensor:
    return encode(codec, x, _draw(seed))
