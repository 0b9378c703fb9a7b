"""Chapter 9. Four small Triton puzzles, and a watch over every load and store.

    spec      what the kernel must compute, as one line of PyTorch
    run       inputs from the puzzle, the reader's kernel in Triton's interpreter, and what it left in `out`
    watching  inside it, an access outside a kernel's tensors is written down instead of ending the process

A GPU reads whatever lies at an address, or stops the whole program. The interpreter would do the same with the memory
of this process. So `watching` looks at each address first, notes it, and lets only the good ones through.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minipaged.errors import (
    InvalidInputError,
    MinipagedError,
    MissingPackageError,
    a_function,
    require,
    shown,
)


class OutsideAccessError(MinipagedError, IndexError):
    """A kernel loaded or stored outside the buffers it was given; the message says which place and which program."""


class CompiledTritonError(MinipagedError, RuntimeError):
    """Triton was loaded without its interpreter, and these functions look inside the interpreter."""


def interpreter() -> Any:
    """Triton's interpreter module; it is chosen by an environment variable before Triton is imported.

    Raises:
        MissingPackageError: no Triton on this machine (it has wheels for Linux only).
        CompiledTritonError: Triton was imported for the GPU before.
    """
    os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        require("triton", "a Triton kernel")
    except MissingPackageError as error:
        raise MissingPackageError(f"{error} (on Linux; there is no Triton for Windows or macOS)") from None
    if os.environ["TRITON_INTERPRET"] != "1":
        raise CompiledTritonError(
            "Triton runs without its interpreter here; restart Python and set TRITON_INTERPRET=1 before importing it"
        )
    return require("triton.runtime.interpreter", "a Triton kernel")


def has_triton() -> bool:
    """Whether kernels can be interpreted here."""
    try:
        interpreter()
    except MinipagedError:
        return False
    return True


# ---- watching every access -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """One number that a kernel asked for outside its buffers."""

    kind: str  # "load" or "store"
    program: tuple[int, ...]
    buffer: str  # the nearest one
    index: int  # where that would be, counted in that buffer's numbers
    size: int  # how many numbers the buffer has

    def __str__(self) -> str:
        which = self.program[0] if self.program[1:] == (0, 0) else self.program
        return (
            f"program {which} {self.kind}s {self.buffer}[{self.index}], and {self.buffer} has {self.size} numbers "
            f"(0 to {self.size - 1})"
        )


@dataclass
class Watch:
    """What the programs touched: `outside`, and for each tensor, by the kernel's name for it, indices by program."""

    buffers: dict[str, torch.Tensor] = field(default_factory=dict)  # of the launch that runs now
    outside: list[Access] = field(default_factory=list)
    loads: dict[str, dict[tuple[int, ...], set[int]]] = field(default_factory=lambda: defaultdict(dict))
    stores: dict[str, dict[tuple[int, ...], set[int]]] = field(default_factory=lambda: defaultdict(dict))
    loaded: Counter[str] = field(default_factory=Counter)  # numbers loaded, counting one again when it is loaded again
    widest: int = 0  # places of the largest tile that was loaded or stored

    def raise_if_outside(self) -> None:
        """Raise OutsideAccessError for the first access outside, if there was one."""
        if self.outside:
            more = f"; {len(self.outside) - 1} more" if len(self.outside) > 1 else ""
            raise OutsideAccessError(f"{self.outside[0]}{more}")

    def allow(self, kind: str, program: tuple[int, ...], addresses: Any, wanted: Any) -> Any:
        """Note every wanted address; return the mask of those that lie inside a buffer."""
        import numpy as np

        self.widest = max(self.widest, addresses.size)
        wanted = np.broadcast_to(wanted, addresses.shape)
        inside = np.zeros(addresses.shape, dtype=bool)
        for name, tensor in self.buffers.items():
            size = tensor.element_size()
            first = tensor.data_ptr()
            here = wanted & (addresses >= first) & (addresses < first + _span(tensor) * size)
            if here.any():  # indices count the tensor's numbers in memory, from its first
                seen = self.loads if kind == "load" else self.stores
                places = (addresses[here].astype(np.int64) - first) // size
                seen[name].setdefault(program, set()).update(places.tolist())
                if kind == "load":
                    self.loaded[name] += len(places)
            inside |= here
        for address in addresses[wanted & ~inside].ravel().tolist():
            self.outside.append(self._nearest(kind, program, int(address)))
        return inside

    def _nearest(self, kind: str, program: tuple[int, ...], address: int) -> Access:
        def far(item: tuple[str, torch.Tensor]) -> int:
            first, size = item[1].data_ptr(), _span(item[1]) * item[1].element_size()
            return max(first - address, address - first - size, 0)

        name, tensor = min(self.buffers.items(), key=far)
        return Access(kind, program, name, (address - tensor.data_ptr()) // tensor.element_size(), _span(tensor))


def _span(tensor: torch.Tensor) -> int:
    """Numbers from a tensor's first to its last, those between its strides included."""
    return (
        1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    )


@contextmanager
def watching() -> Iterator[Watch]:
    """While this is open, a kernel may touch the CPU tensors it was given; everything else is written down.

    A load from outside gives 0 and a store outside does nothing.
    """
    module = interpreter()
    builder, executor = module.interpreter_builder, module.GridExecutor
    watch = Watch()
    call, load, store = executor.__call__, builder.create_masked_load, builder.create_masked_store

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        names = inspect.signature(self.fn).parameters
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        watch.buffers = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        call(self, *args, **kwargs)

    def guarded(kind: str, pointers: Any, mask: Any) -> Any:
        program = tuple(int(i) for i in builder.grid_idx)
        return type(mask)(watch.allow(kind, program, pointers.data, mask.data), mask.dtype)

    executor.__call__ = launched
    builder.create_masked_load = lambda pointers, mask, *rest: load(pointers, guarded("load", pointers, mask), *rest)
    builder.create_masked_store = lambda pointers, value, mask, *rest: store(
        pointers, value, guarded("store", pointers, mask), *rest
    )
    try:
        yield watch
    finally:
        executor.__call__ = call
        del builder.create_masked_load, builder.create_masked_store  # the class's own are underneath


# ---- the puzzles -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Puzzle:
    """One task: `spec` says in PyTorch what `kernel[grid](x, out, *arguments)` must leave in `out`."""

    name: str
    spec: Callable[[torch.Tensor], torch.Tensor]
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    arguments: tuple[int, ...]
    lowest: bool = False  # row 1 of the input is -inf throughout: no finite number is as low

    def __post_init__(self) -> None:
        a_function("spec", self.spec, "a PyTorch function of x that returns what out must be")

    def x(self, seed: int = 0) -> torch.Tensor:
        """Its input: whole numbers below zero, in row 1 below -200, so that a wrong start value shows."""
        x = -torch.randint(1, 99, self.shape, generator=torch.Generator().manual_seed(seed)).float()
        if x.dim() == 2:
            x[1] = -torch.inf if self.lowest else x[1] - 200
        return x

    def resized(self, n: int, size: int) -> Puzzle:
        """The same task for another length `n` and another tile `size`."""
        if len(self.shape) == 1:
            return replace(self, shape=(n,), grid=(-(-n // size),), arguments=(n, size))
        return replace(self, shape=(self.shape[0], n), arguments=(n, size))


PUZZLES = {
    puzzle.name: puzzle
    for puzzle in (
        Puzzle("load", lambda x: x + 10, (8,), (1,), (8,)),
        Puzzle("mask", lambda x: x * 2, (20,), (3,), (20, 8)),
        Puzzle("loop", lambda x: x * 2, (3, 20), (3,), (20, 8)),
        Puzzle("reduce", lambda x: x.amax(dim=1), (3, 20), (3,), (20, 8)),
    )
}


@dataclass(frozen=True)
class Outcome:
    """What one kernel did with one puzzle."""

    puzzle: Puzzle
    x: torch.Tensor
    yours: torch.Tensor  # NaN where nothing was stored
    expected: torch.Tensor
    outside: list[Access]
    stored: bool
    foreign: list[str]  # accesses inside the tensors, but in a row that belongs to another program
    widest: int = 0  # places of the largest tile

    @property
    def right(self) -> bool:
        """Every number as expected, nothing outside, and no program in another program's row."""
        return torch.equal(self.yours, self.expected) and not self.outside and not self.foreign

    def __str__(self) -> str:
        programs = self.puzzle.grid[0]
        lines = [f"puzzle {self.puzzle.name}: x {list(self.x.shape)}, {programs} program{'s'[: programs - 1]}"]
        if not self.stored and not self.outside:
            return lines[0] + "\n  nothing was stored in out yet"
        difference = self.yours - self.expected
        for label, tensor in (("yours", self.yours), ("expected", self.expected), ("difference", difference)):
            for i, row in enumerate(tensor.reshape(-1, tensor.shape[-1])):
                numbers = " ".join(f"{'-' if number != number else format(number, 'g'):>4}" for number in row.tolist())
                lines.append(f"  {label if i == 0 else '':<10} {numbers}")
        lines += [f"  outside: {access}" for access in self.outside[:3]]
        lines += [f"  outside: {len(self.outside) - 3} more"] if len(self.outside) > 3 else []
        lines += [f"  another row: {access}" for access in self.foreign[:1]]
        return "\n".join([*lines, "  right" if self.right else "  not yet"])


def run(task: str | Puzzle, kernel: Any, seed: int = 0) -> Outcome:
    """Run a kernel, with or without `@triton.jit`, on a puzzle's input, in the interpreter, watched."""
    if not isinstance(task, Puzzle) and (not isinstance(task, str) or task not in PUZZLES):
        raise InvalidInputError(f"no puzzle {shown(task)}; pass one of {', '.join(PUZZLES)}, or a Puzzle")
    puzzle = PUZZLES[task] if isinstance(task, str) else task
    if not hasattr(kernel, "__getitem__") or isinstance(kernel, type | str | Sequence | Mapping):
        a_function("kernel", kernel, "a function of (x, out, ...), with or without @triton.jit")
    interpreter()
    import triton

    x = puzzle.x(seed)
    expected = puzzle.spec(x)
    out = torch.full_like(expected, torch.nan)
    launch = kernel if hasattr(kernel, "__getitem__") else triton.jit(kernel)
    with watching() as watch:
        launch[puzzle.grid](x, out, *puzzle.arguments)
    stored = bool(watch.stores) or any(access.kind == "store" for access in watch.outside)
    return Outcome(puzzle, x, out, expected, watch.outside, stored, _foreign(watch, x, out), watch.widest)


def _foreign(watch: Watch, *tensors: torch.Tensor) -> list[str]:
    """Where program r touched a row other than r of a matrix, the first place of each program."""
    found = []
    for name, tensor in watch.buffers.items():
        if tensor.dim() != 2 or not any(tensor is given for given in tensors):
            continue
        for kind, seen in (("load", watch.loads[name]), ("store", watch.stores[name])):
            for program, places in sorted(seen.items()):
                others = sorted(place for place in places if place // tensor.shape[1] != program[0])
                if others:
                    row = others[0] // tensor.shape[1]
                    found.append(f"program {program[0]} {kind}s {name}[{others[0]}], which belongs to row {row}")
    return found


def show(name: str, kernel: Any) -> None:
    """Print yours, expected, difference and every access outside the buffers; never raises."""
    try:
        print(run(name, kernel))
    except MinipagedError as error:
        print(error)
    except Exception as error:  # the reader's kernel: its error is a line here, as in a check
        print(f"puzzle {name}: your kernel raised {type(error).__name__}: {error}")
