"""Tensors that are not plain: sparse, quantised, nested, conjugated, expanded, wrapped.

Only plain dense tensors can be averaged, sent as bytes or written in place. Others are only
compared, part by part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DIGEST_BYTES = 16
CHUNK_BYTES = 1 << 24
"""Bytes that are copied and hashed at a time, so that no large tensor is copied as a whole."""


def is_plain(tensor: Tensor) -> bool:
    """Whether it is dense memory that can be read as bytes and written in place."""
    return (
        not is_traceable_wrapper_subclass(tensor)
        and not tensor.is_nested
        and not tensor.is_quantized
        and tensor.layout == torch.strided
        and not tensor.is_meta
        and not _overlaps(once(tensor))
    )


def once(tensor: Tensor) -> Tensor:
    """A view with each memory location of an expanded tensor once: size 1 if the stride is 0."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def put(tensor: Tensor, value: Tensor) -> None:
    """Copies `value` into a tensor of the same shape, which may be expanded."""
    target = once(tensor)
    target.copy_(value[tuple(slice(size) for size in target.shape)])


def bytes_of(tensor: Tensor) -> Tensor:
    """The values of a plain tensor in order, as bytes; a view if its memory is in order."""
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)


def digest_of_tensors(named: Iterable[tuple[str, Tensor]]) -> bytes:
    """A digest of names and bits.

    It makes no numpy views of the tensors, which would make them impossible to resize.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, tensor in named:
        digest.update(name.encode())
        for part in _parts(tensor.detach()):
            for chunk in bytes_of(part).split(CHUNK_BYTES):
                digest.update(chunk.to("cpu", copy=True).numpy().data)
    return digest.digest()


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Dense tensors that together hold the whole content of `tensor`."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _parts(getattr(tensor, name))
    elif tensor.is_meta:
        return
    elif tensor.is_nested:
        for part in tensor.unbind():
            yield from _parts(part)
    elif tensor.is_quantized:
        yield tensor.int_repr()
        yield from _scales(tensor)
    elif tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        yield from (tensor.indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif tensor.layout != torch.strided:
        yield tensor.to_dense()
    else:
        yield tensor


def _scales(quantised: Tensor) -> Iterator[Tensor]:
    if quantised.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        yield torch.tensor([quantised.q_scale(), quantised.q_zero_point()], dtype=torch.float64)
    else:
        yield from (quantised.q_per_channel_scales(), quantised.q_per_channel_zero_points())


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements may share memory."""
    reach = 1
    axes = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in axes if size > 1):
        if stride < reach:
            return True
        reach = stride * size
    return False
