"""A second device that is not there: tensors on it compute on the CPU, but do not mix with the CPU's.

It goes by the name of `meta`, a device that torch knows everywhere. With the mode on, what is made there, or moved
there, is a tensor with numbers after all; whatever mixes it with a tensor of the CPU is an error, as it would be on a
GPU. Single numbers may be mixed in, as there; indices may not, though a GPU would fetch them.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

SECOND = torch.device("meta")


class MixedDevicesError(AssertionError):
    """An operation on tensors of both devices."""


class There(Tensor):
    """A tensor on the second device: its numbers are `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=SECOND,
        )
        made.held = real
        return made

    def __repr__(self) -> str:
        return f"There({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def tensor(data: Any, *, device: torch.device | None = None, made: Any = torch.tensor, **options: Any) -> Tensor:
    """`torch.tensor`, which puts numbers on a device by a way of its own that no mode sees."""
    found: Tensor = made(data, **options)
    return found if device is None else found.to(device)


class SecondDevice(TorchDispatchMode):
    """While on, the second device can be used; `seen` are the types of numbers that were computed with there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()
        self.patch = patch.object(torch, "tensor", tensor)

    def __enter__(self) -> SecondDevice:
        self.patch.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = run(func, args, kwargs or {})
        tree_map(lambda x: self.seen.add(x.dtype) if isinstance(x, There) else None, found)
        return found


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given: list[Tensor] = []
    tree_map(lambda x: given.append(x) if isinstance(x, Tensor) else None, (args, kwargs))
    there = [x for x in given if isinstance(x, There)]
    wanted = kwargs.get("device")
    moves = "_to_copy" in str(func) or "aten.copy_" in str(func)
    if there and not moves and any(not isinstance(x, There) and x.dim() for x in given):
        raise MixedDevicesError(f"{func} mixes tensors of two devices")
    if there and not moves and str(func).startswith("aten.index") and len(there) < len(given):
        raise MixedDevicesError(f"{func} indexes with a tensor of another device")
    stays = bool(there) and (wanted is None or torch.device(wanted) == SECOND)
    made_there = not there and wanted is not None and torch.device(wanted) == SECOND
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    wrappers = {id(x.held): x for x in there}

    def back(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, There):
            return x
        if id(x) in wrappers:
            return wrappers[id(x)]
        return There(x) if stays or made_there else x

    plain_args, plain_kwargs = tree_map(lambda x: x.held if isinstance(x, There) else x, (args, kwargs))
    return tree_map(back, func(*plain_args, **plain_kwargs))
