"""Chapters 7 and 11. Who owns which block: the KV pool cut into blocks of the same size, a table for every sequence.

The idea is the operating system's. A sequence counts its tokens 0, 1, 2, ... as if its memory were one long strip; the
table says where each piece of the strip really lies:

    sequence 7, 37 tokens     token 0..15     token 16..31    token 32..36 and 11 slots to grow into
    block table               [ 5,            100,            888 ]
    slot of token 20          block_table[20 // 16] * 16 + 20 % 16  =  100 * 16 + 4

Here are numbers only, no tensor: `BlockPool` holds the free blocks and counts who uses each block, `BlockManager` holds
the tables. A block is handed out when a token needs it and not before, so less than one block a sequence stays empty
(Kwon et al., SOSP 2023, sections 4.2 and 4.3). `Paged` puts this manager behind the simulator of chapter 6.
Admission, growing and freeing are chapter 7's; host memory is chapter 10's; sharing is chapter 11's: several tables may
name one block, whoever writes into such a block copies it first (section 4.4), and a prompt that begins like an earlier
one finds that one's blocks again (`PrefixIndex`). Read it in that order. Left out: merging equal blocks.
"""

from __future__ import annotations

import enum
import operator
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from minipaged.errors import (
    InvalidInputError,
    MinipagedError,
    a_function,
    an_instance,
    listed,
    shown,
    whole_number,
    yes_or_no,
)

MOST_BLOCKS = 2**24  # a pool of 16 million blocks; the numbers alone take gigabytes


class OutOfBlocksError(MinipagedError):
    """Not enough free blocks for what was asked; nothing was changed, so it can be asked again later."""


class AllocStatus(enum.Enum):
    """Whether a new sequence can be admitted."""

    OK = "ok"  # now
    LATER = "later"  # when running sequences have given blocks back
    NEVER = "never"  # not even into an empty pool


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: num_tokens / block_size, rounded up.

    Raises:
        InvalidInputError: a number of tokens below 0, or a block without slots.
    """
    if not (type(num_tokens) is type(block_size) is int and num_tokens >= 0 < block_size):  # asked in every step
        num_tokens, block_size = whole_number("num_tokens", num_tokens), whole_number("block_size", block_size, 1)
    return -(-num_tokens // block_size)


def physical_slot(block_table: Sequence[int], position: int, block_size: int) -> int:
    """The slot in the pool where the token at `position` of a sequence lies.

    Args:
        block_table: physical block numbers of the sequence, in the order of its tokens.
        position: 0 for the first token.
        block_size: slots in a block.

    Raises:
        InvalidInputError: the table holds no such position.
    """
    block_size = whole_number("block_size", block_size, 1)
    block_table = listed("block_table", block_table, "the physical block numbers of a sequence")
    if not 0 <= (position := whole_number("position", position, None)) < len(block_table) * block_size:
        raise InvalidInputError(
            f"position {position} is outside a table of {len(block_table)} blocks of {block_size}, "
            f"which holds positions 0 to {len(block_table) * block_size - 1}"
        )
    block = whole_number("a block of block_table", block_table[position // block_size], None)
    if block < 0:
        raise InvalidInputError(f"position {position} falls on {block}, which pads the table and names no block")
    return block * block_size + position % block_size


@dataclass(slots=True)
class Block:
    """One block of the pool.

    Attributes:
        block_id: its physical number, 0 to num_blocks - 1. Block 0 is a block like any other.
        ref_count: how many block tables name it. 0 means that it is free.
    """

    block_id: int
    ref_count: int = 0


class BlockPool:
    """All blocks, and the queue of free ones.

    Blocks leave at the front of the queue and come back at its end, so the block that was free for longest goes first.
    The queue is an ordered dictionary because chapter 11 takes blocks out of its middle; a deque would search for them.

    Args:
        num_blocks: blocks in the pool.
        block_order: block numbers to hand out first, in this order; the others follow in rising order. For showing and
            testing that the order does not matter.
    """

    def __init__(self, num_blocks: int, block_order: Iterable[int] | None = None) -> None:
        num_blocks = whole_number("num_blocks", num_blocks, 1, MOST_BLOCKS)
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        order = () if block_order is None else listed("block_order", block_order, "a list of block numbers, or None")
        first = [whole_number("a block of block_order", i) for i in order]
        if len(set(first)) != len(first) or not all(0 <= block_id < num_blocks for block_id in first):
            shown = f"{first[:8]}" + ("..." if len(first) > 8 else "")
            raise InvalidInputError(f"block_order {shown} names a block twice or one outside 0 to {num_blocks - 1}")
        rest = set(first)
        self.free_ids = OrderedDict.fromkeys([*first, *(i for i in range(num_blocks) if i not in rest)])
        self.prefixes = PrefixIndex()  # stays empty without prefix caching

    @property
    def num_free(self) -> int:
        """Blocks that no table names."""
        return len(self.free_ids)

    def take(self, count: int) -> list[int]:
        """Hand out `count` free blocks, each with a reference count of 1.

        Raises:
            OutOfBlocksError: fewer are free. The block manager looks first, and says for whom.
        """
        if type(count) is not int or count < 0:
            count = whole_number("count", count)
        if count > len(self.free_ids):
            raise OutOfBlocksError(f"{shown(count)} blocks are wanted, and {len(self.free_ids)} are free")
        taken = [self.free_ids.popitem(last=False)[0] for _ in range(count)]
        for block_id in taken:
            self.blocks[block_id].ref_count = 1
            self.prefixes.remove(block_id)  # it will hold something else: this is the eviction of chapter 11
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """One table more names each of these blocks; one that was free leaves the queue of free ones (chapter 11)."""
        for block_id in self._numbers(block_ids):
            if self.blocks[block_id].ref_count == 0:
                del self.free_ids[block_id]
            self.blocks[block_id].ref_count += 1

    def give_back(self, block_ids: Iterable[int]) -> None:
        """One table fewer names each of these blocks; one that no table names any more joins the free ones."""
        block_ids = self._numbers(block_ids)
        for block_id, times in Counter(block_ids).items():
            if self.blocks[block_id].ref_count < times:  # not through BlockManager; silent, it would mean two owners
                raise MinipagedError(f"block {block_id} is given back twice: it is free already")
        for block_id in block_ids:
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_ids[block_id] = None  # at the end

    def _numbers(self, block_ids: Iterable[int]) -> list[int]:
        """The blocks that are named, once all of them are blocks of this pool."""
        block_ids = listed("block_ids", block_ids, "a list of block numbers")
        for block_id in block_ids:
            if type(block_id) is not int or not 0 <= block_id < len(self.blocks):
                whole_number("a block of block_ids", block_id, most=len(self.blocks) - 1)
        return block_ids


class BlockManager:
    """The block tables of all sequences, over one pool.

    Args:
        num_blocks: blocks in the pool.
        block_size: slots in a block; a slot holds one token's K and V of every layer.
        watermark: the part of the pool that admission leaves free, int(watermark * num_blocks) blocks, so that running
            sequences can grow a little before one of them has to be preempted. Growing may use these blocks.
        block_order: see `BlockPool`.
        num_host_blocks: blocks of a second pool, in host memory, that whole sequences can be moved to and from.
        enable_prefix_caching: let new sequences use the blocks of earlier ones that begin with the same tokens.
        hash_function: see `PrefixIndex`.

    Sequences are known by an integer id that the caller chooses. Every method checks first and changes after: when one
    raises, nothing has changed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        watermark: float = 0.01,
        block_order: Iterable[int] | None = None,
        num_host_blocks: int = 0,
        enable_prefix_caching: bool = False,
        hash_function: Callable[[int, tuple[int, ...]], int] | None = None,
    ) -> None:
        num_host_blocks = whole_number("num_host_blocks", num_host_blocks)
        block_size = whole_number("block_size", block_size, 1)
        if not isinstance(watermark, Real) or isinstance(watermark, bool) or not 0 <= watermark < 1:
            raise InvalidInputError(f"watermark is {shown(watermark)}; it is a part of the pool, from 0 to below 1")
        yes_or_no("enable_prefix_caching", enable_prefix_caching)
        self.pool = BlockPool(num_blocks, block_order)
        self.block_size = block_size
        self.watermark_blocks = int(watermark * num_blocks)
        self.host_pool = BlockPool(num_host_blocks) if num_host_blocks else None
        self._tables: dict[int, list[int]] = {}
        self._num_tokens: dict[int, int] = {}
        self._host_tables: dict[int, list[int]] = {}  # of the sequences that are swapped out
        self.enable_prefix_caching = enable_prefix_caching
        self.pool.prefixes = PrefixIndex(hash_function)
        self._token_ids: dict[int, Sequence[int]] = {}  # what `allocate` was told, for prefix caching alone
        # of each sequence's full blocks that are computed; no list at all for those that ran at a reset
        self._prefixes: dict[int, list[Prefix]] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free and used."""
        return len(self.pool.blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no table names."""
        return self.pool.num_free

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one table names."""
        return self.num_blocks - self.pool.num_free

    @property
    def seq_ids(self) -> list[int]:
        """Ids of the sequences that hold a table, in order of arrival."""
        return list(self._tables)

    def num_tokens(self, seq_id: int) -> int:
        """Tokens of a sequence that have a slot."""
        return self._num_tokens[self._known(seq_id)]

    def block_table(self, seq_id: int) -> list[int]:
        """Physical block numbers of a sequence, in the order of its tokens (a copy)."""
        return list(self._tables[self._known(seq_id)])

    def slot_mapping(self, seq_id: int, start: int, stop: int) -> list[int]:
        """Physical slots of the tokens start .. stop - 1 of a sequence: where to write their K and V."""
        table, size = self._tables[self._known(seq_id)], self.block_size
        if not type(start) is type(stop) is int:
            start, stop = whole_number("start", start, None), whole_number("stop", stop, None)
        if not 0 <= start <= stop <= self._num_tokens[seq_id]:
            raise InvalidInputError(
                f"tokens {shown(start)} to {shown(stop)} of sequence {seq_id}: it has {self._num_tokens[seq_id]} "
                "tokens with a slot; call append_slots first"
            )
        return [table[position // size] * size + position % size for position in range(start, stop)]

    # -- admission -------------------------------------------------------------------------------------------------

    def can_allocate(self, token_ids: Sequence[int], *, watermark: bool = True, extra: int = 0) -> AllocStatus:
        """Whether a new sequence with these tokens can be admitted now, later, or never.

        Args:
            token_ids: its tokens. Only their number matters, unless earlier blocks can be found again (chapter 11).
            watermark: keep the watermark free. A sequence that will be alone needs no room left for others.
            extra: blocks that must stay free besides, for other samples of the same prompt.

        Raises:
            InvalidInputError: there is no token, or `extra` is below 0.
        """
        return self._plan(token_ids, watermark, whole_number("extra", extra))[0]

    def _plan(self, token_ids: Sequence[int], watermark: bool, extra: int = 0) -> tuple[AllocStatus, list[int]]:
        """The status of an admission, and the blocks that hold the K and V of its first tokens already."""
        if _length(token_ids) == 0:
            raise InvalidInputError("an empty prompt: a sequence starts with at least 1 token (a start token will do)")
        yes_or_no("watermark", watermark)
        spare = extra + (self.watermark_blocks if watermark else 0)
        wanted = blocks_needed(len(token_ids), self.block_size) + spare
        if wanted > self.num_blocks:
            return AllocStatus.NEVER, []
        cached = self._cached_blocks(token_ids)
        # one that others use costs nothing; one that is free costs what a fresh block costs: it leaves the free queue
        wanted -= sum(self.pool.blocks[block_id].ref_count > 0 for block_id in cached)
        return (AllocStatus.OK if wanted <= self.num_free_blocks else AllocStatus.LATER), cached

    def allocate(self, seq_id: int, token_ids: Sequence[int], *, watermark: bool = True) -> int:
        """Admit a sequence: give it a table with a slot for each of its tokens.

        Args:
            seq_id: an id that no admitted sequence has.
            token_ids: its tokens, see `can_allocate`.
            watermark: see `can_allocate`.

        Returns:
            How many of its first tokens have their K and V in the pool already: 0 without prefix caching, otherwise
            whole blocks, and never all tokens.

        Raises:
            InvalidInputError: an id in use, or no token.
            OutOfBlocksError: `can_allocate` says LATER or NEVER.
        """
        seq_id = self._unused(seq_id)
        if self.enable_prefix_caching:
            token_ids = self._whole_ids(token_ids)
        status, cached = self._plan(token_ids, watermark)
        needed = blocks_needed(len(token_ids), self.block_size)
        if status is not AllocStatus.OK:
            later = status is AllocStatus.LATER
            raise OutOfBlocksError(
                f"sequence {seq_id} needs {needed} blocks for {len(token_ids)} tokens; {self.num_free_blocks} of "
                f"{self.num_blocks} are free, {self.watermark_blocks} of which admission leaves. "
                + ("Wait until a sequence is freed." if later else "This pool is too small for it.")
            )
        self.pool.share(cached)  # before others are taken, or one of these might be
        self._tables[seq_id] = [*cached, *self.pool.take(needed - len(cached))]
        self._num_tokens[seq_id] = len(token_ids)
        if self.enable_prefix_caching:
            self._token_ids[seq_id] = token_ids
            self._prefixes[seq_id] = [self.pool.prefixes.held_by(block_id) for block_id in cached]
        return len(cached) * self.block_size

    # -- growing and shrinking -------------------------------------------------------------------------------------

    def new_blocks_needed(self, seq_id: int, n: int = 1) -> int:
        """How many blocks `n` more tokens of this sequence need beyond those it has, a copy of a shared one included.

        The only place that decides it: the check and the action both ask here. Comparing whole numbers of blocks is
        right for every block size; "the length is 1 modulo the block size" is never true for blocks of 1.
        """
        held = len(self._tables[self._known(seq_id)])
        n = whole_number("n, the tokens that a sequence grows by,", n, 1)
        more = blocks_needed(self._num_tokens[seq_id] + n, self.block_size) - held
        return more + self._tail_is_shared(seq_id)

    def can_append(self, seq_id: int, n: int = 1) -> bool:
        """Whether `append_slots(seq_id, n)` would succeed now. The watermark does not count here."""
        return self.new_blocks_needed(seq_id, n) <= self.num_free_blocks

    def append_slots(self, seq_id: int, n: int = 1) -> list[tuple[int, int]]:
        """Give the next `n` tokens of a sequence a slot each, in blocks that no other sequence names.

        Returns:
            Pairs (source block, target block) to copy before anything is written, see `PagedKVCache.copy_blocks`. Empty
            unless the last block is shared and has room (chapter 11).

        Raises:
            InvalidInputError: unknown sequence, or n below 1.
            OutOfBlocksError: not enough free blocks; the sequence is as before.
        """
        needed = self.new_blocks_needed(seq_id, n)
        if needed > self.num_free_blocks:
            raise OutOfBlocksError(
                f"sequence {seq_id} needs {_more(needed, 'block')} for {_more(n, 'token')}, and {self.num_free_blocks} "
                f"of {self.num_blocks} are free. Free or preempt a sequence, or make a larger pool."
            )
        copies = self._copy_on_write(seq_id)
        if needed > len(copies):
            self._tables[seq_id] += self.pool.take(needed - len(copies))
        self._num_tokens[seq_id] += n
        return copies

    def truncate(self, seq_id: int, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on, and give back the blocks that only they used.

        Blocks that other sequences name stay theirs: only the count goes down.

        Raises:
            InvalidInputError: unknown sequence, or `num_tokens` is not between 0 and its length.
        """
        table, num_tokens = self._tables[self._known(seq_id)], whole_number("num_tokens", num_tokens)
        if not 0 <= num_tokens <= self._num_tokens[seq_id]:
            raise InvalidInputError(
                f"sequence {seq_id} has {self._num_tokens[seq_id]} tokens and cannot be cut to {num_tokens}; "
                "a cut leaves from 0 to all of them"
            )
        kept = blocks_needed(num_tokens, self.block_size)
        self.pool.give_back(reversed(table[kept:]))
        del table[kept:]
        self._num_tokens[seq_id] = num_tokens
        if seq_id in self._prefixes:  # what comes instead is not known yet
            self._token_ids[seq_id] = self._token_ids[seq_id][:num_tokens]
            del self._prefixes[seq_id][num_tokens // self.block_size :]

    def free(self, seq_id: int) -> None:
        """The sequence is over: give back all its blocks, the last one first.

        Last first, because the free queue hands out in the order of return. The first blocks of a sequence (a system
        prompt, say) are the ones that another may find again in chapter 11, so they should be reused as late as can be.
        """
        if _an_id(seq_id) in self._host_tables:
            self._host.give_back(reversed(self._host_tables.pop(seq_id)))
        else:
            self.pool.give_back(reversed(self._tables[self._known(seq_id)]))
            del self._tables[seq_id]
        del self._num_tokens[seq_id]
        self._token_ids.pop(seq_id, None)
        self._prefixes.pop(seq_id, None)

    # -- to host memory and back (chapter 10) ----------------------------------------------------------------------

    @property
    def _host(self) -> BlockPool:
        if self.host_pool is None:
            raise InvalidInputError("there is no host pool; make the manager with num_host_blocks")
        return self.host_pool

    def can_swap_out(self, seq_ids: Iterable[int]) -> bool:
        """Whether the host pool has room for all blocks of these sequences, a shared one counted once."""
        needed = _distinct(self._tables[self._known(seq_id)] for seq_id in _once(seq_ids))
        return self.host_pool is not None and needed <= self.host_pool.num_free

    def swap_out(self, seq_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Move whole sequences to the host pool, all or none.

        A block that several of them share is copied once, and shared there too. A block that a sequence outside the
        list names stays for that one; it is copied all the same, so that a sequence in host memory holds no block of
        the pool: swapping has to make room, whoever ends first.

        Returns:
            Pairs (block of the pool, block of the host pool) to copy before anything else is written.

        Raises:
            InvalidInputError: unknown sequence, or no host pool.
            OutOfBlocksError: the host pool has too few free blocks.
        """
        seq_ids, host = _once(seq_ids), self._host
        if not self.can_swap_out(seq_ids):
            raise OutOfBlocksError(
                f"the host pool has {host.num_free} free blocks of {len(host.blocks)}, too few for sequences "
                f"{seq_ids}; free one of them and compute it again later, or make a larger host pool (num_host_blocks)"
            )
        return self._move(seq_ids, self._tables, self.pool, self._host_tables, host)

    def blocks_to_swap_in(self, lengths: Mapping[int, int]) -> int:
        """Blocks of the pool that swapped-out sequences need to come back together and grow.

        Args:
            lengths: sequence -> tokens that it is to hold afterwards, at least those it has.
        """
        an_instance("lengths", lengths, Mapping, "a dictionary {sequence: tokens that it is to hold}")
        tables = {seq_id: self._host_tables[self._swapped(seq_id)] for seq_id in lengths}
        lengths = {seq_id: whole_number("a length", length) for seq_id, length in lengths.items()}
        named = Counter(block_id for table in tables.values() for block_id in table)
        more = {seq_id: max(0, length - self._num_tokens[seq_id]) for seq_id, length in lengths.items()}
        return len(named) + self._growth(more, tables, named)

    def swap_in(self, seq_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Move whole sequences back, all or none; what they share in host memory they share again.

        Returns:
            Pairs (block of the host pool, block of the pool) to copy.

        Raises:
            InvalidInputError: a sequence that is not swapped out.
            OutOfBlocksError: the pool has too few free blocks.
        """
        seq_ids, host = _once(seq_ids), self._host
        needed = _distinct(self._host_tables[self._swapped(seq_id)] for seq_id in seq_ids)
        if needed > self.num_free_blocks:
            raise OutOfBlocksError(
                f"sequences {seq_ids} need {needed} blocks to come back, and {self.num_free_blocks} of "
                f"{self.num_blocks} are free. Free or preempt another sequence first."
            )
        return self._move(seq_ids, self._host_tables, host, self._tables, self.pool)

    @staticmethod
    def _move(
        seq_ids: Iterable[int],
        tables: dict[int, list[int]],
        pool: BlockPool,
        new_tables: dict[int, list[int]],
        new_pool: BlockPool,
    ) -> list[tuple[int, int]]:
        """Give sequences blocks of another pool and take the old ones back; returns the copies to make."""
        moved: dict[int, int] = {}  # old block -> new block
        for seq_id in seq_ids:
            old = tables.pop(seq_id)
            new_pool.share(moved[block_id] for block_id in old if block_id in moved)
            fresh = [block_id for block_id in old if block_id not in moved]
            moved.update(zip(fresh, new_pool.take(len(fresh)), strict=True))
            new_tables[seq_id] = [moved[block_id] for block_id in old]
            pool.give_back(reversed(old))
        return list(moved.items())

    def _swapped(self, seq_id: int) -> int:
        if _an_id(seq_id) not in self._host_tables:
            raise InvalidInputError(f"sequence {shown(seq_id)} is not swapped out")
        return seq_id

    # -- sharing (chapter 11) --------------------------------------------------------------------------------------

    def fork(self, parent_id: int, child_id: int) -> None:
        """Start a sequence that is equal to another one so far: it names the same blocks, and no block is taken.

        All tokens of the parent should be computed: a slot that is still to be written would be shared too.

        Raises:
            InvalidInputError: unknown parent, or an id in use.
        """
        table = self._tables[self._known(parent_id)]
        self._tables[self._unused(child_id)] = list(table)
        self._num_tokens[child_id] = self._num_tokens[parent_id]
        self.pool.share(table)
        if parent_id in self._prefixes:
            self._token_ids[child_id] = self._token_ids[parent_id]
            self._prefixes[child_id] = list(self._prefixes[parent_id])

    def _tail_has_room(self, seq_id: int) -> bool:
        """Whether the next token goes into the last block. A full block is never written: it can stay shared."""
        return len(self._tables[seq_id]) * self.block_size > self._num_tokens[seq_id]

    def _tail_is_shared(self, seq_id: int) -> bool:
        """Whether this sequence's next token would be written into a block that another one names too."""
        return self._tail_has_room(seq_id) and self.pool.blocks[self._tables[seq_id][-1]].ref_count > 1

    def _copy_on_write(self, seq_id: int) -> list[tuple[int, int]]:
        """Put a block of its own in the place of a shared one that the sequence is about to write into.

        The last one to write finds a count of 1 and keeps the original: n sequences cost n - 1 copies.
        """
        table = self._tables[seq_id]
        if not self._tail_is_shared(seq_id):
            if self._tail_has_room(seq_id):  # after a cut it may still be listed with the tokens that were cut off
                self.pool.prefixes.remove(table[-1])
            return []
        shared, (own,) = table[-1], self.pool.take(1)
        table[-1] = own
        self.pool.give_back([shared])
        return [(shared, own)]

    def new_blocks_needed_together(self, more: Mapping[int, int]) -> int:
        """How many blocks several sequences need to grow one after another: {sequence: tokens that it grows by}.

        Less than the sum when all who share a last block write into it: the last of them needs no copy.
        """
        an_instance("more", more, Mapping, "a dictionary {sequence: tokens that it grows by}")
        tables = {seq_id: self._tables[self._known(seq_id)] for seq_id in more}
        more = {seq_id: n if type(n) is int and n >= 0 else whole_number("more", n) for seq_id, n in more.items()}
        named = {table[-1]: self.pool.blocks[table[-1]].ref_count for table in tables.values() if table}
        return self._growth(more, tables, named)

    def _growth(self, more: Mapping[int, int], tables: Mapping[int, list[int]], named: Mapping[int, int]) -> int:
        """Blocks that sequences with these tables need to grow, when `named[block]` tables name a last block."""
        needed, writers = 0, Counter[int]()
        for seq_id, n in more.items():
            table, length = tables[seq_id], self._num_tokens[seq_id]
            needed += blocks_needed(length + n, self.block_size) - len(table) if n else 0
            if n and len(table) * self.block_size > length:
                writers[table[-1]] += 1
        return needed + sum(min(count, named[block_id] - 1) for block_id, count in writers.items())

    # -- finding a prefix again (chapter 11) -----------------------------------------------------------------------

    def mark_computed(self, seq_id: int, num_tokens: int, token_ids: Sequence[int] | None = None) -> None:
        """Say that the K and V of a sequence's first `num_tokens` tokens are in their slots.

        Only then can its full blocks be found by others: before, there is nothing in them to read. Nothing happens
        without prefix caching.

        Args:
            token_ids: its tokens so far, with those that were written since `allocate`, which so become findable too.
                None: those that `allocate` was given.

        Raises:
            InvalidInputError: unknown sequence, or fewer tokens than `num_tokens`.
        """
        held, size = self._num_tokens[self._known(seq_id)], self.block_size
        num_tokens = num_tokens if type(num_tokens) is int else whole_number("num_tokens", num_tokens)
        known = self._token_ids.get(seq_id, ()) if token_ids is None else token_ids
        if not 0 <= num_tokens <= held or (token_ids is not None and _length(token_ids) < num_tokens):
            raise InvalidInputError(
                f"{shown(num_tokens)} tokens of sequence {seq_id} cannot be computed: {held} have a slot, and the "
                f"tokens of {len(known)} are known"
            )
        if seq_id not in self._prefixes:
            return
        table, prefixes = self._tables[seq_id], self._prefixes[seq_id]
        for number in range(len(prefixes), min(num_tokens, len(known)) // size):  # mostly empty: no block has filled
            parent = prefixes[-1] if prefixes else None
            prefixes.append(self.pool.prefixes.add(table[number], parent, self._tokens_in(known, number)))

    def reset_prefix_cache(self) -> None:
        """Find nothing again of what is in the pool now. Sequences that run keep their blocks, and go on.

        What they compute from now on builds on what is there (from other weights, say), so it is never listed either.
        """
        self.pool.prefixes.clear()
        self._prefixes.clear()
        self._token_ids.clear()

    @property
    def cached_blocks(self) -> list[int]:
        """The blocks that can be found again, those in use and those that are free, in order of their numbers."""
        return sorted(self.pool.prefixes.blocks)

    def _cached_blocks(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks that hold the K and V of a text's first tokens already, in order.

        At least one token stays to be computed, also when all of them are cached: what comes next is chosen from the
        logits of the last token, and those are not in the cache.
        """
        found: list[int] = []
        if not self.enable_prefix_caching:
            return found
        prefix: Prefix | None = None
        for number in range((len(token_ids) - 1) // self.block_size):
            block_id = self.pool.prefixes.find(prefix, self._tokens_in(token_ids, number))
            if block_id is None:
                break
            found.append(block_id)
            prefix = self.pool.prefixes.held_by(block_id)
        return found

    def _tokens_in(self, token_ids: Sequence[int], number: int) -> tuple[int, ...]:
        """The tokens of full block `number` of a text, as plain ints: a numpy array's and a list's are the same."""
        start = number * self.block_size
        return tuple(self._whole_ids(token_ids[start : start + self.block_size]))

    @staticmethod
    def _whole_ids(token_ids: Sequence[int]) -> list[int]:
        _length(token_ids)
        try:
            return list(map(operator.index, token_ids))
        except TypeError:
            raise InvalidInputError(
                f"token ids {shown(list(token_ids))}: with prefix caching they are whole numbers"
            ) from None

    def _known(self, seq_id: int) -> int:
        if _an_id(seq_id) not in self._tables:
            raise InvalidInputError(f"no sequence {shown(seq_id)} here; admitted are {sorted(self._tables)[:10]}")
        return seq_id

    def _unused(self, seq_id: int) -> int:
        if _an_id(seq_id) in self._tables or seq_id in self._host_tables:
            raise InvalidInputError(f"sequence {seq_id} is admitted already; free it first, or choose another id")
        return seq_id


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The tokens of one full block, and all that came before them (chapter 11).

    Attributes:
        parent: the prefix that ends where this block begins; None for the first block of a text.
        token_ids: the block's tokens.
        hash: of the parent's hash and these tokens.

    K and V of a token depend on every token before it. So a block can stand in for another only if all of the text up
    to its end is the same, and equal tokens in the block are not enough.
    """

    parent: Prefix | None
    token_ids: tuple[int, ...]
    hash: int


def hash_block(parent_hash: int, token_ids: tuple[int, ...]) -> int:
    """The hash of a full block: of its tokens and, through the parent's hash, of everything before them."""
    try:
        return hash((parent_hash, token_ids))
    except TypeError:
        raise InvalidInputError(f"token_ids is {shown(token_ids)}; pass a tuple of whole numbers") from None


class PrefixIndex:
    """Which blocks hold the K and V of a given prefix? (chapter 11)

        [t0 .. t15]  [t16 .. t31]      a = H(0, t0 .. t15),  b = H(a, t16 .. t31)      index {a: block 5, b: block 9}

    The hash only says where to look. The block's tokens and its parent are compared, so two texts that happen to have
    the same hash never read each other's K and V. A parent is compared by identity, in one step: `add` hands out one
    object for equal prefixes, as long as a block holds one.

    Args:
        hash_function: H(the parent's hash, tokens); tests give a constant. None for `hash_block`.
    """

    def __init__(self, hash_function: Callable[[int, tuple[int, ...]], int] | None = None) -> None:
        if hash_function is None:
            hash_function = hash_block
        wanted = "a function of the parent's hash and a tuple of tokens, such as hash_block, or None for that one"
        self._hash_function = a_function("hash_function", hash_function, wanted)
        self._prefix_in: dict[int, Prefix] = {}  # block -> what it holds
        self._blocks_at: dict[int, dict[int, None]] = {}  # hash -> blocks, the first one listed first

    @property
    def blocks(self) -> list[int]:
        """All blocks that can be found."""
        return list(self._prefix_in)

    def held_by(self, block_id: int) -> Prefix:
        """What a listed block holds."""
        return self._prefix_in[block_id]

    def find(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> int | None:
        """A block that holds these tokens behind this prefix, or None."""
        return self._find(self._hash(parent, token_ids), parent, token_ids)

    def add(self, block_id: int, parent: Prefix | None, token_ids: tuple[int, ...]) -> Prefix:
        """List a block whose K and V are computed. Another block that holds the same may be listed beside it."""
        key = self._hash(parent, token_ids)
        equal = self._find(key, parent, token_ids)
        prefix = Prefix(parent, token_ids, key) if equal is None else self._prefix_in[equal]
        self.remove(block_id)
        self._prefix_in[block_id] = prefix
        self._blocks_at.setdefault(key, {})[block_id] = None
        return prefix

    def remove(self, block_id: int) -> None:
        """The block is about to hold something else; nothing happens if it is not listed."""
        prefix = self._prefix_in.pop(block_id, None)
        if prefix is not None:
            del self._blocks_at[prefix.hash][block_id]
            if not self._blocks_at[prefix.hash]:
                del self._blocks_at[prefix.hash]

    def clear(self) -> None:
        """List nothing."""
        self._prefix_in.clear()
        self._blocks_at.clear()

    def _hash(self, parent: Prefix | None, token_ids: tuple[int, ...]) -> int:
        key = self._hash_function(0 if parent is None else parent.hash, token_ids)
        if type(key) is not int and not _hashable(key):
            raise InvalidInputError(f"hash_function returned {shown(key)}, which no dictionary takes as a key")
        return key

    def _find(self, key: int, parent: Prefix | None, token_ids: tuple[int, ...]) -> int | None:
        for block_id in self._blocks_at.get(key, ()):
            held = self._prefix_in[block_id]
            if held.token_ids == token_ids and held.parent is parent:
                return block_id
        return None


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _distinct(tables: Iterable[list[int]]) -> int:
    """How many different blocks these tables name."""
    return len({block_id for table in tables for block_id in table})


def _an_id(seq_id: Any) -> int:
    """A sequence's id; True and 1.0 are none, though a dictionary takes them for 1."""
    is_id = type(seq_id) is int or (isinstance(seq_id, Integral) and not isinstance(seq_id, bool))
    if not is_id or not -(2**63) <= seq_id < 2**63:
        raise InvalidInputError(f"seq_id is {shown(seq_id)}; sequences are known by an integer")
    return seq_id


def _length(token_ids: Sequence[int]) -> int:
    """How many tokens there are; a text, a set or a tensor of two axes is no list of tokens."""
    if type(token_ids) is not list:
        odd = isinstance(token_ids, str | bytes | Mapping | Set) or getattr(token_ids, "ndim", 1) != 1
        if odd or not hasattr(token_ids, "__getitem__") or not hasattr(token_ids, "__len__"):
            raise InvalidInputError(f"token_ids is {shown(token_ids)}; pass a list of token ids")
    try:
        return len(token_ids)
    except OverflowError:  # a range: it has no limit of its own
        raise InvalidInputError(f"token_ids is {shown(token_ids)}: more tokens than any pool holds") from None


def _once(seq_ids: Iterable[int]) -> list[int]:
    """The ids, once it is known that none comes twice: its second move would find nothing and lose the first."""
    if isinstance(seq_ids, Mapping):
        seq_ids = seq_ids.keys()
    seq_ids = [_an_id(seq_id) for seq_id in listed("seq_ids", seq_ids, "a list of sequences")]
    if len(set(seq_ids)) < len(seq_ids):
        raise InvalidInputError(f"sequences {seq_ids} name one twice; each can be moved once")
    return seq_ids


def shuffled(num_blocks: int, seed: int = 0) -> list[int]:
    """All block numbers in a random order, for `block_order`: the same order for the same seed."""
    num_blocks = whole_number("num_blocks", num_blocks, 1, MOST_BLOCKS)
    return random.Random(whole_number("seed", seed)).sample(range(num_blocks), num_blocks)


class Paged:
    """The fourth allocator of chapter 6's simulator: a real `BlockManager` behind the simulator's calls.

    A request is a sequence. Nothing is reserved, so `capacity` is what its blocks hold, and only the last block has
    slots that are not written yet. The simulator asks to `grow` at a block's border; the manager then counts all tokens
    written since the last time, which names the same blocks as counting them one by one.

    Args:
        block_size: slots in a block.
        watermark: see `BlockManager`.
    """

    def __init__(self, block_size: int = 16, watermark: float = 0.01) -> None:
        block_size = whole_number("block_size", block_size, 1)
        self.name = f"Paged({block_size})"
        self.block_size = block_size
        self.watermark = watermark
        self.reset(block_size)  # one block, until the simulator says how large the pool is

    def reset(self, num_slots: int) -> None:
        """An empty pool of `num_slots` slots; slots beyond the last whole block are never used."""
        num_slots = whole_number("num_slots", num_slots, 1)
        if num_slots < self.block_size:
            raise InvalidInputError(f"a pool of {num_slots} slots holds no block of {self.block_size}")
        self.num_slots = num_slots
        self.manager = BlockManager(num_slots // self.block_size, self.block_size, watermark=self.watermark)

    def why_never(self, prompt_len: int, output_len: int) -> str | None:
        """Why a request could not end even alone here, or None. Preempted late, it must be admitted again."""
        prompt_len, output_len = whole_number("prompt_len", prompt_len, 1), whole_number("output_len", output_len)
        manager, longest = self.manager, prompt_len + output_len
        last_admission = blocks_needed(max(prompt_len, longest - 1), self.block_size) + manager.watermark_blocks
        if max(last_admission, blocks_needed(longest, self.block_size)) <= manager.num_blocks:
            return None
        return (
            f"{prompt_len} + {output_len} tokens need {blocks_needed(longest, self.block_size)} blocks of "
            f"{self.block_size}; the pool has {manager.num_blocks}, of which {manager.watermark_blocks} stay free at "
            "admission"
        )

    def admit(self, request: int, prompt_len: int, output_len: int) -> bool:
        """Blocks for the prompt alone; how long the output will be is not known, and not asked."""
        prompt_len = whole_number("prompt_len", prompt_len, 1)
        if self.manager.can_allocate(range(prompt_len)) is not AllocStatus.OK:
            return False
        self.manager.allocate(request, range(prompt_len))
        return True

    def capacity(self, request: int) -> int:
        """Tokens that the request's blocks hold."""
        return len(self.manager._tables[self.manager._known(request)]) * self.block_size

    def grow(self, request: int, num_tokens: int) -> bool:
        """Slots for `num_tokens` tokens in all; False, and nothing changed, when the pool has no block for them."""
        num_tokens = whole_number("num_tokens", num_tokens, 1)
        try:
            self.manager.append_slots(request, num_tokens - self.manager.num_tokens(request))
        except OutOfBlocksError:
            return False
        return True

    def free(self, request: int) -> None:
        """The request is over, or preempted."""
        self.manager.free(request)

    @property
    def num_free(self) -> int:
        """Slots that no request holds."""
        return self.num_slots - self.manager.num_used_blocks * self.block_size

    def spans(self, request: int) -> list[tuple[int, int]]:
        """The request's blocks as (first slot, number of slots), in the order of its tokens."""
        return [(block_id * self.block_size, self.block_size) for block_id in self.manager.block_table(request)]


def _more(n: int, what: str) -> str:
    """1 more block, 2 more blocks."""
    return f"{n} more {what}{'' if n == 1 else 's'}"
