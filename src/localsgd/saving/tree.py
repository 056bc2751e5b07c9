"""Trees of tensors and plain values, as named tensors and a text that says how they are joined.

The text is JSON. So what is read back can only be tensors, numbers, text and the few containers
named here: no file chooses code.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.rows.parts import is_plain
from localsgd.rows.shards import is_sharded

PLAIN = (bool, int, float, str)
"""Values that stand in the text as they are, beside `None`."""

POSITION = re.compile(r"@\d+")
"""Names the rank of a worker; left out of the names of sharded tensors, which its ranks share."""

CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda items: Counter(dict(items)),
}
"""By name in the text, what a list of parts (pairs, for mappings) becomes."""


def pack(tree: Any, name: str) -> tuple[dict[str, Tensor], str]:
    """The tensors of a tree by name, and the text that `unpack` joins them by.

    Examples:
        >>> tensors, text = pack({"a": torch.ones(2), "b": (1, None)}, "x")
        >>> list(tensors)
        ['x/a']
        >>> unpack(text, tensors)
        {'a': tensor([1., 1.]), 'b': (1, None)}

    Args:
        tree: tensors, arrays, numbers, text and `None` in lists, tuples and mappings.
        name: begins the names of all tensors.

    Raises:
        UserError: something else is in it.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, json.dumps(_packed(tree, name, tensors))


def unpack(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that was packed.

    Raises:
        LookupError, RecursionError, TypeError, ValueError: the text is damaged.
    """
    return _unpacked(json.loads(text), tensors)


def check_kinds(found: Any, like: Any, name: str) -> None:
    """Refuses a tree that has another kind of value than another one has in the same place.

    Examples:
        >>> check_kinds({"a": 1.5, "b": []}, {"a": 2}, "state")
        >>> check_kinds({"a": [1.5]}, {"a": 2}, "state")
        Traceback (most recent call last):
        ValueError: state.a is of type list, and not a number

    Args:
        found: tensors, numbers, text and `None` in lists, tuples and mappings.
        like: the other tree. What either lacks is not compared, nor is `None`.
        name: of the tree.
    """
    wanted = next((words for kind, words in _KINDS.items() if isinstance(like, kind)), "")
    if found is None or like is None or not wanted:
        return
    if not any(isinstance(found, kind) for kind, words in _KINDS.items() if words == wanted):
        raise ValueError(f"{name} is of type {type(found).__name__}, and not {wanted}")
    if isinstance(like, Mapping):
        for key in like.keys() & found.keys():
            check_kinds(found[key], like[key], f"{name}.{key}")
    elif isinstance(like, Tensor) and found.shape != like.shape:
        raise ValueError(f"{name} has the shape {tuple(found.shape)}, and not {tuple(like.shape)}")
    elif isinstance(like, list | tuple):
        for index, (part, other) in enumerate(zip(found, like, strict=False)):
            check_kinds(part, other, f"{name}[{index}]")


_KINDS: Mapping[type, str] = {
    Mapping: "a mapping",
    list: "a list",
    tuple: "a list",
    Tensor: "a tensor",
    int: "a number",
    float: "a number",
    str: "text",
}


def as_tensor(text: str) -> Tensor:
    """The bytes of a text, `[n]`."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def as_text(tensor: Tensor) -> str:
    """The inverse of `as_tensor`."""
    return bytes(tensor.numpy().data).decode()


def _packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in PLAIN:
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _packed_tensor(value, name, tensors)
    if isinstance(value, Mapping):
        kind = type(value).__name__ if type(value).__name__ in CONTAINERS else "dict"
        parts = [
            [_key(key, name), _packed(part, f"{name}/{key}", tensors)]
            for key, part in value.items()
        ]
        return {kind: parts}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(p, f"{name}/{i}", tensors) for i, p in enumerate(value)]}
    for plain in PLAIN:  # subclasses, such as an enumeration's
        if isinstance(value, plain):
            return plain(value)
    raise UserError(
        f"{name} is a {type(value).__name__}, which can't be saved without code in the file; give "
        "numbers, text, tensors, or an object with state_dict() and load_state_dict()"
    )


def _packed_tensor(value: Any, name: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    kind = "tensor" if isinstance(value, Tensor) else "array"
    tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(value.copy())
    if not is_plain(tensor) and not is_sharded(tensor):
        raise UserError(
            f"{name} is no dense tensor (sparse, quantised, nested or meta), which can't be saved "
            "here; save such a model by each rank's own state_dict() and torch.save"
        )
    if is_sharded(tensor):
        name = POSITION.sub("", name, count=1)
    while name in tensors:  # keys 1 and "1"
        name += "'"
    tensors[name] = tensor
    return {kind: name}


def _key(key: Any, name: str) -> Any:
    if key is None or type(key) in PLAIN:
        return key
    raise UserError(
        f"{name} has the key {key!r}, which can't be saved without code in the file; give numbers "
        "or text as keys"
    )


def _unpacked(found: Any, tensors: Mapping[str, Tensor]) -> Any:
    if found is None or type(found) in PLAIN:
        return found
    if not isinstance(found, dict) or len(found) != 1:
        raise ValueError("its text joins tensors in an unknown way")
    [(kind, content)] = found.items()
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind not in CONTAINERS or not isinstance(content, list):
        raise ValueError(f"its text joins tensors by {kind!r}, which is unknown")
    if kind in ("list", "tuple"):
        return CONTAINERS[kind]([_unpacked(part, tensors) for part in content])
    return CONTAINERS[kind]([(key, _unpacked(part, tensors)) for key, part in content])
