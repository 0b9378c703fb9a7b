"""Chapter 8. A whole transformers model on paged attention, many sequences packed into one row.

    Batch   input_ids  [ a9 | b0 b1 b2 | c40 ]   one row, no padding        transformers' own model code
            positions  [  9 |  0  1  2 |  40 ]                        ->    embeds, projects, rotates, and for
            slots      [ .. | .. .. .. |  .. ]                              attention calls the function below
                                                                      <-    logits of each sequence's last row

`ModelRunner` writes no model code: it registers one attention function with transformers, which stores the new K and V
in their slots and reads all of them through the block tables. What such a function cannot see (a bias, a state that
runs from token to token, a window the call does not mention) would make the output silently wrong, so a model is first
probed against itself and refused if one number differs. Left out: scheduling (chapter 10) and sampling (chapter 1).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from minipaged.block_manager import BlockManager, blocks_needed, physical_slot
from minipaged.errors import InvalidInputError, MinipagedError
from minipaged.paged_attention import PagedBatch, attend, pick_backend
from minipaged.paged_cache import PagedKVCache
from minipaged.prepacked import Forwards, calls_in_order, prepacked, reading_the_same, reorderable

_NAME = "minipaged"  # the attention implementation, and the keyword under which a pass carries its metadata


class UnsupportedModelError(MinipagedError):
    """This model would not give its own output on paged attention; the message says why, and what still runs it."""


def _refusal(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{why}; transformers' own generate() still runs this model")


@dataclass(frozen=True)
class Batch:
    """One step of the model: the new tokens of several sequences, one after another, and where everything lies.

    Attributes:
        input_ids: [num_tokens], the new tokens of all sequences.
        positions: [num_tokens], each token's position in its own sequence, from 0.
        slot_mapping: [num_tokens], the physical slot that each token's K and V go to.
        block_tables: for each sequence, its physical blocks.
        seq_lens: for each sequence, its tokens including this step's.
        cu_seqlens_q: [num_seqs + 1], where each sequence's new tokens begin, and their total.
    """

    input_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slot_mapping: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    seq_lens: list[int] = field(default_factory=list)
    cu_seqlens_q: list[int] = field(default_factory=lambda: [0])

    def add(
        self, new_ids: Sequence[int], num_computed_tokens: int, block_table: Sequence[int], block_size: int
    ) -> None:
        """Put one sequence's new tokens behind the others'.

        Args:
            new_ids: the tokens to compute in this step.
            num_computed_tokens: its tokens whose K and V are stored already.
            block_table: its physical blocks, with a slot for every token, the new ones included.
            block_size: slots in a block.
        """
        if not len(new_ids):
            raise InvalidInputError("a sequence without new tokens has no row in a batch; leave it out of this step")
        end = num_computed_tokens + len(new_ids)
        self.slot_mapping.extend(physical_slot(block_table, p, block_size) for p in range(num_computed_tokens, end))
        self.input_ids.extend(new_ids)
        self.positions.extend(range(num_computed_tokens, end))
        self.block_tables.append(list(block_table))
        self.seq_lens.append(end)
        self.cu_seqlens_q.append(self.cu_seqlens_q[-1] + len(new_ids))

    @property
    def last_rows(self) -> list[int]:
        """The row of each sequence's last new token: the one whose logits say what comes next."""
        return [stop - 1 for stop in self.cu_seqlens_q[1:]]


class ModelRunner:
    """Runs packed batches of any transformers decoder that honours the attention interface.

    Args:
        model: a loaded causal language model; it is left as it was found.
        num_blocks: blocks of the pool that is made for it.
        block_size: slots in a block.
        backend: see `paged_attention`.
        fill: what unused slots hold; NaN shows that nobody reads them.
        prepack: on a CPU, keep float32 weights a second time in the order that its matrix product reads them: a third
            less time a step, for twice the memory of the weights. Off where torch has no oneDNN.

    Raises:
        UnsupportedModelError: the model cannot be right on paged attention; the reason is in the message.
    """

    def __init__(
        self,
        model: Any,
        num_blocks: int,
        block_size: int = 16,
        *,
        backend: str = "auto",
        fill: float = 0.0,
        prepack: bool = False,
    ) -> None:
        refuse_by_config(model)
        self.model = model
        self._packed: Forwards = []
        self.backend = pick_backend(backend, model.device)
        self._configs = list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())
        accepted = inspect.signature(model.forward).parameters
        self._keeps_rows = "logits_to_keep" in accepted
        probe = _Probe(self)
        with calls_in_order(reorderable(model) if prepack else []) as calls:
            shapes = probe.shapes()
        self._packed = prepacked(reading_the_same(calls))
        probe.compare(shapes)
        self.cache = PagedKVCache(shapes, num_blocks, block_size, model.dtype, model.device, fill=fill)

    @torch.inference_mode()
    def run(self, batch: Batch, rows: Sequence[int] | None = None) -> torch.Tensor:
        """One pass: store the new tokens' K and V, and return logits.

        Args:
            batch: see `Batch`.
            rows: which rows to return logits of; None: each sequence's last one.

        Returns:
            [len(rows), vocab] in the model's dtype.

        Raises:
            InvalidInputError: lengths, tables or slots that do not fit each other or the pool; nothing was written.
        """
        rows = batch.last_rows if rows is None else list(rows)
        self._check(batch, rows)
        step = _Step(self.cache, self._prepare(batch), self._slots(batch), self.backend)
        return self._forward(batch, step, rows)

    def _prepare(self, batch: Batch) -> PagedBatch:
        return PagedBatch(
            batch.block_tables,
            batch.seq_lens,
            batch.cu_seqlens_q,
            self.cache.block_size,
            self.model.device,
            self.cache.num_blocks,
        )

    def _slots(self, batch: Batch) -> torch.Tensor:
        return torch.tensor(batch.slot_mapping, dtype=torch.long, device=self.model.device)  # [num_tokens]

    def _check(self, batch: Batch, rows: list[int]) -> None:
        refuse_training(self.model)
        total, slots = batch.cu_seqlens_q[-1], batch.slot_mapping
        if not 0 < total == len(batch.input_ids) == len(batch.positions) == len(slots):
            raise InvalidInputError(
                f"a batch of {len(batch.input_ids)} input_ids, {len(batch.positions)} positions, {len(slots)} slots "
                f"and cu_seqlens_q ending at {total}; all four must be equal and at least 1"
            )
        vocab = self.model.config.get_text_config().vocab_size
        wrong = [i for i in batch.input_ids if not 0 <= i < vocab]
        if wrong:
            raise InvalidInputError(f"token id {wrong[0]} is outside the vocabulary, 0 to {vocab - 1}")
        last = self.cache.num_blocks * self.cache.block_size - 1
        wrong = [slot for slot in slots if not 0 <= slot <= last]
        if wrong or len(set(slots)) < len(slots):
            what = f"names slot {wrong[0]}, outside 0 to {last}" if wrong else "names a slot twice"
            raise InvalidInputError(f"slot_mapping {what}")
        wrong = [row for row in rows if not 0 <= row < total]
        if wrong:
            raise InvalidInputError(f"row {wrong[0]} is asked for; this batch has rows 0 to {total - 1}")
        if any(a >= b for a, b in itertools.pairwise(batch.cu_seqlens_q)):
            raise InvalidInputError(f"cu_seqlens_q is {batch.cu_seqlens_q}; it must rise, a sequence has a new token")

    def _forward(self, batch: Batch, step: Any, rows: Sequence[int]) -> torch.Tensor:
        device = self.model.device
        kept = torch.tensor(list(rows), dtype=torch.long, device=device)
        options = {"logits_to_keep": kept} if self._keeps_rows else {}
        with self._attention(_NAME):
            logits = self.model(
                input_ids=torch.tensor([batch.input_ids], device=device),  # [1, num_tokens]
                position_ids=torch.tensor([batch.positions], device=device),
                use_cache=False,
                **{_NAME: step},
                **options,
            ).logits[0]
        return logits if self._keeps_rows else logits[kept]  # [len(rows), vocab]

    @contextlib.contextmanager
    def _attention(self, name: str) -> Iterator[None]:
        """The model's attention is `name` inside, and what it was before afterwards; ours brings prepacked weights."""
        before = [config._attn_implementation_internal for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation_internal = name
            for linear, forward in self._packed if name == _NAME else ():
                vars(linear)["forward"] = forward  # past torch's own __setattr__, which takes a hundred times longer
            yield
        finally:
            for linear, _ in self._packed:
                vars(linear).pop("forward", None)
            for config, old in zip(self._configs, before, strict=True):
                config._attn_implementation_internal = old


# ---- what transformers calls in place of its own attention


class _Step:
    """What one pass needs to know; each attention call takes the next K and V tensors of the pool.

    Calls are counted, not named by their layer: some models call attention twice in a layer or enter a layer again.
    """

    def __init__(self, cache: PagedKVCache, batch: PagedBatch, slots: torch.Tensor, backend: str) -> None:
        self.cache, self.batch, self.slots, self.backend = cache, batch, slots, backend
        self.calls = 0

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        """q, k, v: [num_tokens, heads, dim]; returns [num_tokens, num_heads, v_dim]."""
        call, self.calls = self.calls, self.calls + 1
        self.cache.write(call, k, v, self.slots, check=False)
        return attend(
            q, self.cache.k_cache[call], self.cache.v_cache[call], self.batch, backend=self.backend, **options
        )


def _paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    minipaged: Any = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, num_heads, num_tokens, k_dim] -> [1, num_tokens, num_heads, v_dim]."""
    if minipaged is None:
        raise _refusal(
            f"{type(module).__name__} calls attention without the metadata that was given to the model: it does not "
            "hand keyword arguments down to its attention"
        )
    for name, extra in (("mask of its own", attention_mask), *((n, others.get(n)) for n in ("position_bias", "alibi"))):
        if extra is not None:
            raise _refusal(f"{type(module).__name__} adds a {name} to its scores, which is not paged")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [num_tokens, heads, dim]
    out = minipaged.attend(q, k, v, scale=scaling, sliding_window=sliding_window, logit_softcap=softcap, sinks=s_aux)
    return out[None], None


AttentionInterface.register(_NAME, _paged)
AttentionMaskInterface.register(_NAME, lambda *_, **__: None)  # the block tables say who sees whom: no mask to build


# ---- which models are refused


def refuse_training(model: Any) -> None:
    """Refuse a model in training mode: dropout would make its output random."""
    if getattr(model, "training", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} is in training mode, with dropout: call model.eval() first"
        )


def refuse_by_config(model: Any) -> None:
    """Refuse what can be told from the config alone, with the reason; the probe finds the rest."""
    config = model.config.get_text_config() if hasattr(model, "config") else None
    if config is None:
        raise InvalidInputError(f"{type(model).__name__} is not a transformers model: it has no config")
    refuse_training(model)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise _refusal(f"{name} has an encoder; this engine runs decoders alone")
    kinds = set(getattr(config, "layer_types", None) or ())
    if "chunked_attention" in kinds or getattr(config, "attention_chunk_size", None):
        raise _refusal(f"{name} attends in fixed chunks (chunked_attention), which is not paged here")
    states = sorted(kinds - {"full_attention", "sliding_attention"})
    if states:
        raise _refusal(f"{name} has layers of kind {', '.join(states)}: they keep no K and V to page")
    rope = getattr(config, "rope_parameters", None) or {}
    types = {r.get("rope_type") for r in (rope, *rope.values()) if isinstance(r, dict)}
    if types & {"longrope", "dynamic"}:
        raise _refusal(
            f"{name} scales its rotations ({', '.join(sorted(types & {'longrope', 'dynamic'}))}) by the largest "
            "position in the row; packed sequences would change each other"
        )


class _Recorder:
    """Stands in for `_Step` in the first pass: notes each call's shapes."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
        self.shapes.append((k.shape[1], k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:2], v.shape[2])


class _Probe:
    """Compares the model on paged attention with the model on its own, on a few random tokens.

    Three sequences: packed prefill, a chunk, single decode steps; every window is shrunk so that all go beyond it.
    """

    LENGTHS = (11, 5, 18)
    PROMPTS = (6, 1, 9)
    CHUNK = 3
    WINDOW = 4

    def __init__(self, runner: ModelRunner) -> None:
        self.runner, self.model = runner, runner.model

    @torch.inference_mode()
    def compare(self, shapes: list[tuple[int, int, int]]) -> None:
        """Refuse the model unless its logits through blocks are its own."""
        generator = torch.Generator().manual_seed(0)
        vocab = self.model.config.get_text_config().vocab_size
        ids = [torch.randint(vocab, (n,), generator=generator).tolist() for n in self.LENGTHS]
        plain = [self._alone(sequence) for sequence in ids]
        with _windows_shrunk_to(self.model, self.WINDOW) as windows:
            wanted = [self._alone(sequence) for sequence in ids] if windows else plain
            if windows and all(torch.equal(a, b) for a, b in zip(plain, wanted, strict=True)):
                raise _refusal(
                    f"{self._name} has a sliding window of {max(windows)} that could not be tested: making it smaller "
                    "changes nothing"
                )
            self._must_agree(self._paged(ids, shapes), wanted)

    @property
    def _name(self) -> str:
        return type(self.model).__name__

    @torch.inference_mode()
    def shapes(self) -> list[tuple[int, int, int]]:
        """(num_kv_heads, k_dim, v_dim) of every attention call."""
        recorder, batch = _Recorder(), Batch(input_ids=[0, 1], positions=[0, 1])
        try:
            self.runner._forward(batch, recorder, [0])
        except UnsupportedModelError:
            raise
        except Exception as error:
            raise _refusal(
                f"{self._name} cannot run a packed row without a cache: {type(error).__name__}: {error}"
            ) from error
        if not recorder.shapes:
            raise _refusal(f"{self._name} has its own attention code: it never asks transformers' interface")
        return recorder.shapes

    def _alone(self, ids: list[int]) -> torch.Tensor:
        """The model's own logits for one sequence, without any cache: [length, vocab]."""
        with self.runner._attention("eager"):  # transformers' plainest code, which leaves out no option
            row = torch.tensor([ids], device=self.model.device)
            return self.model(input_ids=row, use_cache=False).logits[0].double()

    def _paged(self, ids: list[list[int]], shapes: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """The same logits through blocks of 3: packed prompts, then chunks, then one token at a time."""
        size, model = 3, self.model
        manager = BlockManager(sum(blocks_needed(n, size) for n in self.LENGTHS), size, watermark=0)
        self.runner.cache = PagedKVCache(shapes, manager.num_blocks, size, model.dtype, model.device, fill=float("nan"))
        logits: list[list[torch.Tensor]] = [[] for _ in ids]
        done = [0] * len(ids)
        for counts in (self.PROMPTS, (self.CHUNK,) * len(ids), *itertools.repeat((1,) * len(ids), max(self.LENGTHS))):
            parts = [(i, ids[i][done[i] : done[i] + count]) for i, count in enumerate(counts) if done[i] < len(ids[i])]
            if not parts:
                break
            batch = Batch()
            for i, new in parts:
                manager.append_slots(i, len(new)) if done[i] else manager.allocate(i, new)
                batch.add(new, done[i], manager.block_table(i), size)
            out = self.runner.run(batch, range(len(batch.input_ids))).double()
            for (i, new), start in zip(parts, batch.cu_seqlens_q, strict=False):
                logits[i].append(out[start : start + len(new)])
                done[i] += len(new)
        return [torch.cat(rows) for rows in logits]

    def _must_agree(self, got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        limit = {torch.float64: 1e-8, torch.float32: 1e-4}.get(self.model.dtype, 5e-2)
        for a, b in zip(got, wanted, strict=True):
            error = ((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
            if not error < limit:
                raise _refusal(
                    f"{self._name} gives other logits on paged attention than on its own (largest difference "
                    f"{error:.1g} of the largest logit, allowed {limit:.0g}): something in it looks beyond q, k and v"
                )


@contextlib.contextmanager
def _windows_shrunk_to(model: Any, window: int) -> Iterator[list[int]]:
    """Make every sliding window of a model `window` tokens, in its configs and modules; yields the old windows."""
    owners = {id(m): m for m in model.modules()} | {
        id(m.config): m.config for m in model.modules() if hasattr(m, "config")
    }
    changed = []
    for owner in owners.values():
        old = vars(owner).get("sliding_window")
        if isinstance(old, int) and not isinstance(old, bool) and old > 0:
            changed.append((owner, old))
            owner.sliding_window = window
    try:
        yield [old for _, old in changed]
    finally:
        for owner, old in changed:
            owner.sliding_window = old


def pack(parts: Iterable[tuple[Sequence[int], int, Sequence[int]]], block_size: int) -> Batch:
    """A batch from (new tokens, num_computed_tokens, block_table) of each sequence."""
    batch = Batch()
    for new_ids, computed, table in parts:
        batch.add(new_ids, computed, table, block_size)
    return batch
