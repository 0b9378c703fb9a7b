"""Chapter 11. How much memory sharing saves, counted block by block with a real `BlockManager` and no model.

Sequences that start with the same tokens name the same blocks, and only the block that a sequence writes to is its own:

    prompt of 37 tokens, 3 samples     tables          blocks in the pool
    sample 0                           [4, 7, 1]       4 and 7 are full and have a count of 3
    sample 1                           [4, 7, 2]       the third block holds 5 prompt tokens, and each sample has its
    sample 2                           [4, 7, 5]       own, copied before its first write: 9 entries, 5 blocks

The saving is 1 - 5/9, and figure 15 of the paper (Kwon et al., SOSP 2023) is such a number, summed over all steps of
all requests. It counts whole blocks: of a prompt of 19 tokens, 16 are shared and 3 are copied. Left out: time, a full
pool, and prefixes that different requests share. Which beam goes on is drawn here at random; `beam_search` records what
a model chose, and `Saving.of_tables` counts that.
"""

from __future__ import annotations

import itertools
import numbers
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from minipaged.block_manager import BlockManager, blocks_needed
from minipaged.errors import (
    InvalidInputError,
    a_function,
    an_instance,
    listed,
    real_number,
    shown,
    whole_number,
    yes_or_no,
)
from minipaged.fragmentation import Request, check_requests

MOST = 10_000  # samples or beams of a request

# Memory saved in %, OPT-13B on Alpaca (Kwon et al., SOSP 2023, figure 15), for 2, 4 and 6 samples or beams.
FIGURE_15 = {
    "parallel sampling": {2: 6.09, 4: 8.53, 6: 9.79},
    "beam search": {2: 37.56, 4: 53.13, 6: 55.16},
}


@dataclass(frozen=True)
class Saving:
    """Blocks summed over steps, with and without sharing.

    Attributes:
        blocks_used: different blocks that the tables name.
        blocks_alone: all entries of the tables: the blocks that would be needed if every sequence had its own.
    """

    blocks_used: int = 0
    blocks_alone: int = 0

    def __post_init__(self) -> None:
        for name in ("blocks_used", "blocks_alone"):
            whole_number(name, getattr(self, name))

    @property
    def fraction(self) -> float:
        """The part that sharing saves, from 0 to below 1."""
        return 1 - self.blocks_used / self.blocks_alone if self.blocks_alone else 0.0

    def __add__(self, other: Saving) -> Saving:
        """Both together."""
        if not isinstance(other, Saving):
            return NotImplemented
        return Saving(self.blocks_used + other.blocks_used, self.blocks_alone + other.blocks_alone)

    @classmethod
    def of_tables(cls, steps: Iterable[Sequence[Sequence[int]]]) -> Saving:
        """Count recorded block tables.

        Args:
            steps: for each step, the block table of every sequence.
        """
        used = alone = 0
        for tables in listed("steps", steps, "for each step, the block table of every sequence"):
            tables = [
                listed("a block table", table, "a list of block numbers")
                for table in listed("a step", tables, "the block table of every sequence")
            ]
            used += len({whole_number("a block", block) for table in tables for block in table})
            alone += sum(len(table) for table in tables)
        return cls(used, alone)


# ---- samples


def saved_by_sampling(
    requests: Iterable[Request], n: int, block_size: int = 16, *, same_length: bool = False, seed: int = 0
) -> Saving:
    """What n samples of each prompt save by sharing its blocks, summed over all passes of the model.

    A request of p prompt and o output tokens takes o passes, and holds p, p + 1, ..., p + o - 1 tokens: the last one is
    never stored. In the first pass the samples share the whole prompt, afterwards its full blocks.

    Each sample ends at a length of its own, as random texts do: the first has the request's output length, the others
    that of a request drawn from the list. A sample that has ended shares nothing any more.

    On `alpaca_like` lengths this gives about 4.7 / 8.4 / 10.0% for 2, 4 and 6 samples; figure 15 has 6.09 / 8.53 /
    9.79. With samples of one length it gives 7.8 / 11.7 / 13.0. The paper does not say how long its samples were. On
    ShareGPT, where it has 16.2 to 30.5%, samples of one length come nearer (17 to 28, `sharegpt_like`) than these do
    (10 to 22).

    Args:
        requests: (prompt length, output length) of each, in tokens.
        n: samples of each.
        block_size: slots in a block; 1 counts tokens.
        same_length: all samples of a request have its output length.
        seed: of the drawn lengths.

    Raises:
        InvalidInputError: n or block_size below 1, or a request that is no pair of lengths.
    """
    requests, n = check_requests(requests), whole_number("n", n, 1, MOST)
    yes_or_no("same_length", same_length)
    manager = _roomy(requests, n, block_size)
    ids, draw, total = itertools.count(), random.Random(whole_number("seed", seed)), Saving()
    for prompt_len, output_len in requests:
        outputs = [output_len, *(output_len if same_length else draw.choice(requests)[1] for _ in range(n - 1))]
        total += _sampled(manager, prompt_len, outputs, ids)
    return total


def _sampled(manager: BlockManager, prompt_len: int, outputs: list[int], ids: Iterator[int]) -> Saving:
    """One prompt and its samples, until the last one has ended."""
    running = dict(zip(fork_from_prompt(manager, prompt_len, len(outputs), ids), outputs, strict=True))
    total, written = _held(manager, running), 1  # the pass over the prompt stores it and writes each first token
    _end(manager, running, written)
    while running:
        stored = prompt_len + written - 1  # the newest token is stored by the pass that reads it
        to_border = manager.block_size - stored % manager.block_size
        passes = min(to_border, min(running.values()) - written)  # nothing else happens before
        for seq_id in running:
            manager.append_slots(seq_id, passes)
        written += passes
        total += _held(manager, running, passes)
        _end(manager, running, written)
    return total


def _end(manager: BlockManager, running: dict[int, int], written: int) -> None:
    """Free the samples that have written all their tokens."""
    for seq_id in [seq_id for seq_id, output_len in running.items() if output_len == written]:
        manager.free(seq_id)
        del running[seq_id]


def token_estimate(requests: Iterable[Request], n: int) -> float:
    """The estimate that counts tokens and not blocks: the prompts' part of all tokens, times (n - 1) / n.

    All samples have the same length and are looked at when they end. It is about twice what whole blocks save: with the
    mean lengths of Alpaca, 19.31 and 58.45, it gives 12.4 / 18.6 / 20.7% for 2, 4 and 6 samples.

    Args:
        requests: (prompt length, output length) of each; means will do.
        n: samples of each.
    """
    wanted = "pairs (prompt length, output length)"
    requests, n = (
        [listed("a request", pair, wanted) for pair in listed("requests", requests, wanted)],
        whole_number("n", n, 1),
    )
    for pair in requests:
        if len(pair) != 2:
            raise InvalidInputError(f"a request is {shown(pair)}; pass {wanted}")
    lengths = [[real_number("a length", length, least=0) for length in pair] for pair in requests]
    prompts = sum(prompt_len for prompt_len, _ in lengths)
    tokens = sum(prompt_len + output_len for prompt_len, output_len in lengths)
    if not tokens > 0:
        raise InvalidInputError("there are no tokens to count; give at least one (prompt length, output length)")
    return prompts / tokens * (n - 1) / n


# ---- beams


def saved_by_beams(
    requests: Iterable[Request],
    k: int,
    block_size: int = 16,
    *,
    parents: Callable[[int], Sequence[int]] | None = None,
    seed: int = 0,
) -> Saving:
    """What k beams of each prompt save by sharing, summed over all passes of the model.

    This is a model of beams, not a measurement. With parents drawn at random it gives about 39 / 58 / 63% for 2, 4 and
    6 beams of `alpaca_like` lengths; figure 15 says 37.56 / 53.13 / 55.16, so the more beams, the more it is above. No
    choice of parents shares more than "all continue beam 0", which gives 40 / 59 / 66. Real beams are not drawn: good
    ones have more children, and they end at different lengths; neither is in here, and nothing was tuned.

    Args:
        requests: (prompt length, output length) of each, in tokens; all beams of a request have its output length.
        k: beams of each.
        block_size: slots in a block; 1 counts tokens.
        parents: called with k for every step; for each beam of the step, the beam of the last step that it continues.
            None draws each of them at random, all equally likely.
        seed: of the draws.

    Raises:
        InvalidInputError: k or block_size below 1, a request that is no pair of lengths, or parents that are not k.
    """
    requests, k = check_requests(requests), whole_number("k", k, 1, MOST)
    manager, draw = _roomy(requests, k, block_size), random.Random(whole_number("seed", seed))
    choose = (lambda count: draw.choices(range(count), k=count)) if parents is None else parents
    a_function("parents", choose, "a function of k that returns k beam numbers, or None to draw them")
    ids, total = itertools.count(), Saving()
    for prompt_len, output_len in requests:
        beams = fork_from_prompt(manager, prompt_len, k, ids)
        total += _held(manager, beams)  # the pass over the prompt
        for step in range(1, output_len):
            if step > 1:  # the first k beams all continue the prompt
                beams = next_beams(manager, beams, _one_each(choose(k), k), ids)
            for beam in beams:
                manager.append_slots(beam)
            total += _held(manager, beams)
        for beam in beams:
            manager.free(beam)
    return total


def _one_each(parents: Sequence[int], k: int) -> Sequence[int]:
    if not hasattr(parents, "__len__") or len(parents) != k:
        given = len(parents) if hasattr(parents, "__len__") else repr(parents)
        raise InvalidInputError(f"{given} parents for {k} beams; give one for each beam")
    return parents


def next_beams(manager: BlockManager, beams: Sequence[int], parents: Sequence[int], ids: Iterator[int]) -> list[int]:
    """Go from the beams of one step to those of the next: free, keep, fork.

    A beam that nobody continues is freed, first of all, so that its blocks can be used at once. A beam that one
    continues stays what it is. A beam that m continue is forked m - 1 times.

    Args:
        manager: holds a table for each of `beams`.
        beams: sequence ids.
        parents: for each beam of the next step, which of `beams` it continues, as an index.
        ids: where new sequence ids come from.

    Returns:
        The sequence id of each beam of the next step, in the order of `parents`.

    Raises:
        InvalidInputError: a parent that is no index of `beams`, or a new id that is in use; nothing was changed.
    """
    an_instance("manager", manager, BlockManager, "a BlockManager that holds the beams")
    beams = [manager._known(beam) for beam in listed("beams", beams, "a list of sequence ids")]
    parents, there = listed("parents", parents, "a list of beam numbers"), range(len(beams))
    wrong = [p for p in parents if isinstance(p, bool) or not isinstance(p, numbers.Integral) or p not in there]
    if wrong:
        raise InvalidInputError(f"beam {shown(wrong[0])} is to go on; there are beams 0 to {len(beams) - 1}")
    kept: set[int] = set()
    following, forks = [], {}  # forks: new id -> the beam that it copies
    for parent in parents:
        following.append(manager._unused(_next(ids)) if parent in kept else beams[parent])
        if parent in kept:
            forks[following[-1]] = beams[parent]
        kept.add(parent)
    for index in set(there) - kept:
        manager.free(beams[index])
    for new_id, beam in forks.items():
        manager.fork(beam, new_id)
    return following


# ---- both


def fork_from_prompt(manager: BlockManager, prompt_len: int, n: int, ids: Iterator[int]) -> list[int]:
    """Admit a prompt and fork it until there are n sequences; returns their ids."""
    an_instance("manager", manager, BlockManager, "a BlockManager")
    prompt_len, n = whole_number("prompt_len", prompt_len, 1), whole_number("n", n, 1, MOST)
    first, *others = [manager._unused(_next(ids)) for _ in range(n)]  # all of them, before anything changes
    manager.allocate(first, range(prompt_len))
    return next_beams(manager, [first], [0] * n, iter(others))


def _next(ids: Iterator[int]) -> int:
    """A new sequence id, if the caller has one."""
    if not isinstance(ids, Iterator):
        raise InvalidInputError(f"ids is {shown(ids)}; pass an iterator of new sequence ids, such as itertools.count()")
    try:
        return next(ids)
    except StopIteration:
        raise InvalidInputError("ids has no more sequence ids; itertools.count() never runs out") from None


def _roomy(requests: Sequence[Request], n: int, block_size: int) -> BlockManager:
    """A pool in which any one request can run n times without sharing, and a copy be made beside it."""
    block_size = whole_number("block_size", block_size, 1)
    longest = max(p for p, _ in requests) + max(o for _, o in requests)
    return BlockManager(n * blocks_needed(longest, block_size) + 1, block_size, watermark=0)


def _held(manager: BlockManager, seq_ids: Iterable[int], passes: int = 1) -> Saving:
    """What these sequences, all that the manager has, hold now and for some passes on."""
    entries = sum(blocks_needed(manager.num_tokens(seq_id), manager.block_size) for seq_id in seq_ids)
    return Saving(passes * manager.num_used_blocks, passes * entries)
