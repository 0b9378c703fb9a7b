"""Chapter 7. K and V in blocks: the tensors that a block table points into.

For every attention call of a model there is one K and one V tensor, [num_blocks, block_size, num_kv_heads, head_dim].
Seen flat they are rows of slots, and a token's slot is block_table[pos // block_size] * block_size + pos % block_size:

    write    K and V of new tokens --slot_mapping-->  |.. ..|t0 t1 ..|.. ..|t2 .. ..|    (-1: write nothing)
    gather   |block 1|block 3|  --block_table, length-->  [t0 t1 t2], dense, in the order of the sequence

A dense gather copies all of K and V at every step: simple and exact, and the reference of chapter 8, which reads the
blocks where they lie. The same object is a transformers `Cache` for one row, so that `model.generate` runs on it.
Every layer keeps every token, also below a sliding window: the model's mask hides the old ones.
Left out: batches of rows (the engine of chapter 10 packs them), beams, layers that keep a running state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from minipaged.block_manager import BlockManager, blocks_needed
from minipaged.errors import InvalidInputError, an_instance, listed, shown, whole_number, yes_or_no
from minipaged.kv_cache import UnsupportedCacheError, cache_argument, refuse_half_a_pass
from minipaged.models import pick_device, pick_dtype

Shape = tuple[int, int, int]  # (num_kv_heads, k_dim, v_dim) of one attention call
_ROW = 0  # the sequence id of the one row that `generate` fills


class PagedKVCache(Cache):
    """A pool of blocks for K and V, one pair of tensors an attention call.

    Args:
        shapes: (num_kv_heads, k_dim, v_dim) for each attention call of one pass, in order; they may differ.
        num_blocks, block_size: the pool holds num_blocks * block_size tokens.
        dtype, device: of the tensors; a torch dtype or its name.
        block_order: block numbers that the row of `generate` gets first, see `BlockPool`; no result depends on it.
        fill: what a slot holds while no token is in it. NaN shows any read of such a slot: NaN spreads to the logits.

    Attributes:
        k_cache, v_cache: lists of tensors [num_blocks, block_size, num_kv_heads, k_dim or v_dim], one per call.

    Raises:
        InvalidInputError: no shapes, or a size below 1.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        num_blocks: int,
        block_size: int = 16,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        *,
        block_order: Iterable[int] | None = None,
        fill: float = 0.0,
    ) -> None:
        self.shapes = _checked(shapes)
        if not isinstance(fill, Real) or isinstance(fill, bool):
            raise InvalidInputError(f"fill is {shown(fill)}; it must be a number, or NaN")
        self.manager = BlockManager(num_blocks, block_size, watermark=0, block_order=block_order)
        self.num_blocks, self.block_size, self.fill = self.manager.num_blocks, self.manager.block_size, fill
        self.dtype = pick_dtype(dtype)
        self.device = torch.device(pick_device(device))
        self.k_cache = [self._pool(heads, k_dim) for heads, k_dim, _ in self.shapes]
        self.v_cache = [self._pool(heads, v_dim) for heads, _, v_dim in self.shapes]
        self._table = torch.empty(0, dtype=torch.long, device=self.device)  # the row's block table
        super().__init__(layers=[_PagedLayer(self, call) for call in range(len(self.shapes))])

    @classmethod
    def for_model(cls, model: Any, num_blocks: int, block_size: int = 16, **options: Any) -> PagedKVCache:
        """A cache with the shapes, dtype and device of a loaded transformers model.

        The model itself is asked: one pass over one token, and the shapes of the K and V that it makes.

        Args:
            options: `block_order` and `fill`.

        Raises:
            UnsupportedCacheError: a layer keeps something else than the K and V of each token.
        """
        keys_values = [(layer.keys, layer.values) for layer in _probe(model)]
        shapes = [(k.shape[1], k.shape[3], v.shape[3]) for k, v in keys_values]  # k, v: [1, num_kv_heads, 1, dim]
        first = keys_values[0][0]
        return cls(shapes, num_blocks, block_size, first.dtype, first.device, **options)

    def _pool(self, num_kv_heads: int, dim: int) -> torch.Tensor:
        size = (self.num_blocks, self.block_size, num_kv_heads, dim)
        try:
            return torch.full(size, self.fill, dtype=self.dtype, device=self.device)
        except (
            RuntimeError,
            OverflowError,
            TypeError,
        ) as error:  # no memory for it, or a fill that the dtype cannot hold
            reason = str(error).splitlines()[0][:160]
            raise InvalidInputError(
                f"{self.num_blocks} blocks of {self.block_size} x {num_kv_heads} x {dim} numbers in {self.dtype}, "
                f"filled with {shown(self.fill)}, cannot be made on {self.device} ({reason}); use fewer num_blocks"
            ) from error

    def __repr__(self) -> str:
        used = self.manager.num_used_blocks
        return (
            f"PagedKVCache({len(self.shapes)} calls, {self.num_blocks} blocks of {self.block_size}, {used} in use, "
            f"{self.num_bytes / 2**20:.1f} MiB)"
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all K and V tensors."""
        return sum(t.numel() * t.element_size() for t in (*self.k_cache, *self.v_cache))

    # -- the pool: what an engine calls ----------------------------------------------------------------------------

    def write(
        self,
        call: int,
        k: torch.Tensor,
        v: torch.Tensor,
        slot_mapping: torch.Tensor | Sequence[int],
        *,
        check: bool = True,
    ) -> None:
        """Put the K and V of some tokens, of any sequences, into their slots.

        Args:
            call: which attention call of the pass, from 0.
            k, v: [num_tokens, num_kv_heads, k_dim] and [num_tokens, num_kv_heads, v_dim].
            slot_mapping: [num_tokens], the slot of each token; -1 writes nothing (padding).
            check: look at every slot first. Turn it off only for slots that a BlockManager has just given.

        Raises:
            InvalidInputError: a wrong shape, dtype or call, a slot outside the pool, or two tokens for one slot.
        """
        slots = self._numbers(slot_mapping, "slot_mapping")  # [num_tokens]
        self._check_states(call, k, v)
        if slots.shape != k.shape[:1]:
            raise InvalidInputError(
                f"slot_mapping has shape {tuple(slots.shape)} for {k.shape[0]} tokens; one slot each"
            )
        yes_or_no("check", check)
        if check:
            self._check_slots(slots)
            real = slots >= 0
            slots, k, v = slots[real], k[real], v[real]
        self.k_cache[call].flatten(0, 1).index_copy_(0, slots, k)  # flatten: a view [all slots, num_kv_heads, k_dim]
        self.v_cache[call].flatten(0, 1).index_copy_(0, slots, v)

    def gather(
        self, call: int, block_table: torch.Tensor | Sequence[int], length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The K and V of the first `length` tokens of a sequence, copied out of their blocks in order.

        Args:
            call: which attention call of the pass, from 0.
            block_table: physical block numbers in the order of the tokens; what follows the last needed one is unread.
            length: tokens of the sequence.

        Returns:
            k [length, num_kv_heads, k_dim] and v [length, num_kv_heads, v_dim].

        Raises:
            InvalidInputError: the table is too short for `length`, or names a block outside the pool.
        """
        self._check_call(call)
        table = self._numbers(block_table, "block_table").flatten()
        length = whole_number("length", length)
        needed = blocks_needed(length, self.block_size)
        if needed > len(table):
            raise InvalidInputError(
                f"{length} tokens lie in {needed} blocks of {self.block_size}; the table names {len(table)}"
            )
        table = table[:needed]
        self._check_blocks(table, "block_table")
        return self._dense(self.k_cache[call], table, length), self._dense(self.v_cache[call], table, length)

    def _dense(self, cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
        blocks = cache[table]  # [needed, block_size, num_kv_heads, dim]: the lookup, a block at a time
        return blocks.flatten(0, 1)[:length]  # [length, num_kv_heads, dim]: the last block may be part empty

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, in every attention call: (source, target) each. All are read before any is written.

        Raises:
            InvalidInputError: a block outside the pool, or a target named twice.
        """
        pairs = listed("pairs", pairs, "pairs (source block, target block)")
        if not pairs:
            return
        sources, targets = self._pairs(pairs)
        self._check_blocks(sources, "a source")
        self._check_blocks(targets, "a target")
        if len(targets.unique()) != len(targets):
            raise InvalidInputError(f"a target is named twice in {pairs[:8]}: only one copy can stay there")
        for cache in (*self.k_cache, *self.v_cache):
            cache[targets] = cache[sources]

    def copy_from(self, other: PagedKVCache, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks out of another pool of the same shapes, perhaps on another device: (its block, ours).

        Raises:
            InvalidInputError: other shapes, or a block outside one of the pools.
        """
        an_instance("other", other, PagedKVCache, "another PagedKVCache")
        pairs = listed("pairs", pairs, "pairs (its block, our block)")
        if not pairs:
            return
        if other.shapes != self.shapes or other.block_size != self.block_size:
            raise InvalidInputError("blocks can only be copied between pools of the same shapes and block size")
        sources, targets = self._pairs(pairs)
        other._check_blocks(sources, "a source")
        self._check_blocks(targets, "a target")
        sources, targets = sources.to(other.device), targets.to(self.device)
        for theirs, ours in zip((*other.k_cache, *other.v_cache), (*self.k_cache, *self.v_cache), strict=True):
            ours[targets] = theirs[sources].to(self.device)

    def _numbers(self, values: Any, name: str) -> torch.Tensor:
        """Slots or blocks as int64 on this device; nothing is rounded to a whole number."""
        try:
            numbers = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise InvalidInputError(f"{name} is {shown(values)}; give whole numbers") from None
        wrong = numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool
        if (numbers.numel() and wrong) or numbers.is_meta or numbers.layout != torch.strided:
            raise InvalidInputError(f"{name} holds {numbers.dtype} numbers on {numbers.device}; give whole ones")
        return numbers.to(self.device, torch.long)

    def _pairs(self, pairs: list[Any]) -> torch.Tensor:
        """Sources and targets, [2, num_pairs]."""
        numbers = self._numbers(torch.stack(pairs) if isinstance(pairs[0], torch.Tensor) else pairs, "pairs")
        if numbers.shape != (len(pairs), 2):
            raise InvalidInputError(f"pairs is {shown(pairs)}; give (source block, target block) for each copy")
        return numbers.T

    def _check_call(self, call: int) -> None:
        if type(call) is not int or not 0 <= call < len(self.shapes):
            raise InvalidInputError(
                f"attention call {shown(call)}: this cache was made for calls 0 to {len(self.shapes) - 1}"
            )

    def _check_states(self, call: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._check_call(call)
        heads, k_dim, v_dim = self.shapes[call]
        if not isinstance(k, torch.Tensor) or not isinstance(v, torch.Tensor):
            wrong = v if isinstance(k, torch.Tensor) else k
            raise InvalidInputError(f"K and V are tensors; got {shown(wrong)}")
        if k.ndim != 3 or k.shape[1:] != (heads, k_dim) or v.shape != (k.shape[0], heads, v_dim):
            raise InvalidInputError(
                f"call {call} stores k [num_tokens, {heads}, {k_dim}] and v [num_tokens, {heads}, {v_dim}]; "
                f"got {list(k.shape)} and {list(v.shape)}"
            )
        for name, states in (("k", k), ("v", v)):
            if states.dtype != self.dtype or states.device.type != self.device.type:
                raise InvalidInputError(
                    f"{name} is {states.dtype} on {states.device}, this cache is {self.dtype} on {self.device}; make "
                    "the cache with the model's dtype and device, as PagedKVCache.for_model(model, ...) does"
                )

    def _check_slots(self, slots: torch.Tensor) -> None:
        last = self.num_blocks * self.block_size - 1
        if len(slots) and not (int(slots.min()) >= -1 and int(slots.max()) <= last):
            wrong = next(slot for slot in slots.tolist() if not -1 <= slot <= last)
            raise InvalidInputError(f"slot {wrong} is outside the pool's slots 0 to {last} (-1 writes nothing)")
        real = slots[slots >= 0]
        if len(real.unique()) != len(real):
            raise InvalidInputError("slot_mapping names a slot twice: two tokens cannot lie in one slot")

    def _check_blocks(self, block_ids: torch.Tensor, what: str) -> None:
        if len(block_ids) and not (int(block_ids.min()) >= 0 and int(block_ids.max()) < self.num_blocks):
            wrong = next(i for i in block_ids.tolist() if not 0 <= i < self.num_blocks)
            raise InvalidInputError(f"{what} names block {wrong}; the pool's blocks are 0 to {self.num_blocks - 1}")

    # -- one row: what transformers calls --------------------------------------------------------------------------

    @property
    def block_table(self) -> list[int]:
        """The block table of the row that `generate` has filled; empty before the first pass."""
        return self._table.tolist()

    def _row_slots(self, start: int, stop: int) -> torch.Tensor:
        """Slots of the row's tokens start .. stop - 1; the first layer of a pass that asks makes the table grow."""
        if len(self._table) == 0:
            self.manager.allocate(_ROW, range(stop))
        elif stop > self.manager.num_tokens(_ROW):
            copies = self.manager.append_slots(_ROW, stop - self.manager.num_tokens(_ROW))
            self.copy_blocks(copies)  # somebody forked the row in chapter 11: its last block is another one now
            self._table = self._table[:-1] if copies else self._table
        if len(self._table) < blocks_needed(stop, self.block_size):
            self._table = torch.tensor(self.manager.block_table(_ROW), device=self.device)
        position = torch.arange(start, stop, device=self.device)
        return self._table[position // self.block_size] * self.block_size + position % self.block_size  # [stop - start]

    def crop(self, tokens_to_remove: int) -> None:
        """Take the row's last tokens back: `crop(-n)` removes n, as in transformers. Whole blocks return to the pool.

        A positive number, the older meaning, is the length to keep.

        Raises:
            InvalidInputError: more tokens than the row has; nothing was removed.
        """
        held, tokens_to_remove = self.get_seq_length(), whole_number("tokens_to_remove", tokens_to_remove, None)
        if -tokens_to_remove > held:
            raise InvalidInputError(f"cannot remove {-tokens_to_remove} tokens: the row has {held}")
        keep = held + tokens_to_remove if tokens_to_remove <= 0 else min(tokens_to_remove, held)
        if keep == held:
            return
        self._erase(self._row_slots(keep, held))
        for layer in self.layers:
            layer.length = min(layer.length, keep)
        if keep == 0:  # a table of no blocks: as before the first pass
            self.manager.free(_ROW)
        else:
            self.manager.truncate(_ROW, keep)
        self._table = self._table[: blocks_needed(keep, self.block_size)]

    def reset(self) -> None:
        """Forget the row and give all its blocks back."""
        self.crop(-self.get_seq_length())

    def _erase(self, slots: torch.Tensor) -> None:
        """Poison what is no longer used; an ordinary pool leaves the old numbers, which nobody reads."""
        if math.isnan(self.fill):
            counts = [self.manager.pool.blocks[slot // self.block_size].ref_count for slot in slots.tolist()]
            slots = slots[[count == 1 for count in counts]]  # a block that another sequence names too stays as it is
            for cache in (*self.k_cache, *self.v_cache):
                cache.flatten(0, 1)[slots] = self.fill

    def update_conv_state(self, *_: Any, **__: Any) -> torch.Tensor:
        """Refused: a running state has no tokens to page."""
        raise UnsupportedCacheError(
            "PagedKVCache holds K and V of tokens, and this model's layers keep a running state: "
            "let the model make its own cache"
        )

    update_recurrent_state = update_indexer = update_conv_state


class _PagedLayer(CacheLayerMixin):
    """One attention call as transformers sees it: `update` writes the new K and V and returns all of them, dense."""

    is_compileable = False
    is_croppable = True
    is_sliding = False  # every token is kept; the model's own mask hides what is outside a window

    def __init__(self, pool: PagedKVCache, call: int) -> None:
        super().__init__()
        self.pool, self.call, self.length = pool, call, 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the pool was made at the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write K and V [1, num_kv_heads, new, dim]; return those of the whole row, [1, num_kv_heads, length, dim]."""
        if key_states.shape[0] != 1:
            _refuse_rows(f"this pass brings {key_states.shape[0]} rows")
        if self.call == 0:
            refuse_half_a_pass([layer.length for layer in self.pool.layers])
        k, v = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)  # [new, num_kv_heads, dim]
        self.pool._check_states(self.call, k, v)
        stop = self.length + k.shape[0]
        self.pool.write(self.call, k, v, self.pool._row_slots(self.length, stop), check=False)
        self.length = stop
        k, v = self.pool.gather(self.call, self.pool._table, stop)  # [stop, num_kv_heads, dim]
        return k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, num_kv_heads, stop, dim]

    def get_seq_length(self) -> int:
        """Tokens written by this call."""
        return self.length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """(keys that the next pass sees, position of the first one): all tokens, from 0."""
        return self.length + int(query_length), 0

    def get_max_length(self) -> int:
        """No limit of its own: the pool says when it is full."""
        return -1

    def reset(self) -> None:
        """Part of `PagedKVCache.reset`."""
        self.pool.reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Part of `PagedKVCache.crop`: the blocks belong to all layers together."""
        raise InvalidInputError("crop the whole PagedKVCache, not one of its layers: they share one block table")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refused: beams."""
        _refuse_rows("beam search reorders rows")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused: more than one row."""
        _refuse_rows(f"the row would be repeated {repeats} times")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused: more than one row."""
        _refuse_rows("rows would be selected")


def _checked(shapes: Any) -> list[Shape]:
    """The shapes as tuples of three whole numbers."""
    wanted = "(num_kv_heads, k_dim, v_dim) for each attention call"
    found = [listed("a shape", shape, wanted) for shape in listed("shapes", shapes, wanted)]
    if not found or any(len(shape) != 3 for shape in found):
        raise InvalidInputError(f"shapes is {shown(found[:3])}; give {wanted}")
    sizes = "a size in shapes, (num_kv_heads, k_dim, v_dim) for each attention call,"
    return [tuple(whole_number(sizes, size, 1) for size in shape) for shape in found]


def _refuse_rows(what: str) -> None:
    raise InvalidInputError(
        f"{what}, and PagedKVCache stands in for a transformers cache with one row: pass one prompt at a time without "
        "num_beams or num_return_sequences (minipaged's own engine runs many sequences over one pool)"
    )


@torch.no_grad()
def _probe(model: Any) -> list[CacheLayerMixin]:
    """The layers that transformers' own cache holds after one token, if all of them keep plain K and V."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise InvalidInputError(f"model is {type(model).__name__}; pass a loaded transformers model")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedCacheError(f"{type(model).__name__} has an encoder; PagedKVCache is for decoders alone")
    cache = DynamicCache(config=model.config)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model(input_ids=token, use_cache=True, **cache_argument(model, cache))
    layers = list(cache.layers)
    while layers and getattr(layers[-1], "keys", None) is None:  # last layers that read an earlier layer's K and V
        layers.pop()
    for number, layer in enumerate(layers):
        plain = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and layer.keys is not None
        if not plain or layer.keys.ndim != 4:
            raise UnsupportedCacheError(
                f"layer {number} of {type(model).__name__} keeps {type(layer).__name__}, not one K and one V a token: "
                "let the model make its own cache"
            )
    if not layers:
        raise UnsupportedCacheError(f"{type(model).__name__} keeps no K and V at all: there is nothing to page")
    return layers
