"""Chapter 8, on a CPU: matrix products whose weights lie in the order in which they are read.

    q_proj [576 x 576] |
    k_proj [192 x 576] |  ->  x times one reordered matrix [960 x 576]  ->  its three parts, each handed to its layer
    v_proj [192 x 576] |

A decode step reads every weight and computes little with it, so their order counts: in oneDNN's own, float32 products
take a third less time, for twice the memory of the weights. Layers that get the very same rows (a recorded pass shows
which) are one product. This is no idea of the course, and everything is right without it: it makes a CPU as fast as
it can be, as torch's compiler does when it may freeze weights. Left out: other dtypes, and GPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

Forwards = list[tuple[torch.nn.Linear, Callable[[torch.Tensor], torch.Tensor]]]  # each with what replaces its forward


def reorderable(model: Any) -> list[torch.nn.Linear]:
    """The linear layers whose weights oneDNN can reorder; none where torch comes without it."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return []
    linears = [m for m in model.modules() if type(m) is torch.nn.Linear]
    return [m for m in linears if m.weight.dtype == torch.float32 and m.weight.device.type == "cpu"]


@contextlib.contextmanager
def calls_in_order(linears: list[torch.nn.Linear]) -> Iterator[list[tuple[torch.nn.Linear, torch.Tensor]]]:
    """Fills a list with the layers in the order in which they are called, each with its input."""
    calls: list[tuple[torch.nn.Linear, torch.Tensor]] = []

    def note(linear: torch.nn.Linear, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((linear, *args, *kwargs.values()))

    hooks = [linear.register_forward_pre_hook(note, with_kwargs=True) for linear in linears]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def reading_the_same(calls: list[tuple[torch.nn.Linear, torch.Tensor]]) -> list[list[torch.nn.Linear]]:
    """The called layers, those together that got the very same tensor one after another: q, k and v; gate and up."""
    groups: list[list[torch.nn.Linear]] = []
    seen, before = set(), None
    for linear, rows in calls:
        if linear in seen:
            continue
        seen.add(linear)
        if rows is before and (linear.bias is None) == (groups[-1][-1].bias is None):
            groups[-1].append(linear)
        else:
            groups.append([linear])
        before = rows
    return groups


def _product(linears: list[torch.nn.Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
    """One product for all these layers: their weights one below the other, reordered."""
    ops = torch.ops.mkldnn
    weight = ops._reorder_linear_weight(torch.cat([m.weight.detach() for m in linears]))
    bias = None if linears[0].bias is None else torch.cat([m.bias.detach() for m in linears])
    return lambda input: ops._linear_pointwise(input, weight, bias, "none", [], "")


class Together:
    """Layers that read the same rows: the first that is called computes for all, the others find their part."""

    def __init__(self, linears: list[torch.nn.Linear]) -> None:
        self._product, self._sizes = _product(linears), [m.out_features for m in linears]
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, number: int, input: torch.Tensor) -> torch.Tensor:
        """The output of layer `number`, handed out once: whoever got it may write to it."""
        if input is not self._input or number not in self._parts:
            product = self._product(input)
            self._input, self._parts = input, dict(enumerate(product.split(self._sizes, dim=-1)))
        part = self._parts.pop(number)
        if not self._parts:
            self._input = None  # kept no longer than needed: these rows can be large
        return part


def prepacked(groups: list[list[torch.nn.Linear]]) -> Forwards:
    """For every layer a forward that multiplies with reordered weights."""
    forwards: Forwards = []
    for linears in groups:
        if len(linears) == 1:
            forwards.append((linears[0], _product(linears)))
        else:
            together = Together(linears)
            forwards += [(linear, partial(together.part, number)) for number, linear in enumerate(linears)]
    return forwards
