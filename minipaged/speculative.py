"""Chapter 12. Several tokens from one pass of the model: guess them cheaply, check all guesses at once, keep the rule.

    draft       "the cat" ->  sat   on   a            a cheap guess: copied from the text, or by a small model
    one pass    cat sat on a ->  p0  p1  p2  p3       the model's own distribution at all four places
    verify      sat: kept, on: kept, a: rejected -> draw " the" from max(p2 - q2, 0), and p3 is of no use
    roll back   the slot of "a" is given back; the text is "the cat sat on the": three tokens from one pass

A guess drawn from q is kept with probability min(1, p/q). Then every token that is written has exactly the distribution
p, whatever the draft is worth: a bad draft costs time, never quality (Leviathan et al. 2023, section 2.3 and appendix
A.1; Chen et al. 2023, theorem 1). Left out: many requests at once, trees of drafts, and drafts trained for their model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from minipaged.block_manager import AllocStatus, BlockManager, OutOfBlocksError, blocks_needed
from minipaged.engine import LLM, CompletionOutput, Prompt, RequestOutput, best_logprobs
from minipaged.errors import InvalidInputError, MinipagedError, an_instance, listed, real_number, shown, whole_number
from minipaged.model_runner import Batch, ModelRunner
from minipaged.models import load_model
from minipaged.sampling import SamplingParams, filter_logits, sample

MOST_DRAFTED = 10_000  # guesses a pass: far more than any text has use for


class VocabularyMismatchError(InvalidInputError):
    """Draft and target number their tokens differently, so p and q cannot be compared."""


class InterruptedTextError(MinipagedError):
    """Another call was cut off half-way (Ctrl-C, say) while this text was written; the engine has started empty."""


class DraftError(MinipagedError):
    """A draft proposed what it cannot have drawn from the distribution it reports."""


# ---- the rule: pure functions over probabilities -------------------------------------------------------------------


def acceptance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Probability of keeping a token that was drawn from q: min(1, p/q), elementwise (1 where q is 0)."""
    _check_pair(p, q)
    return torch.where(p < q, p / q, 1.0)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What to draw from after a rejection: max(p - q, 0), renormalised to sum 1; [vocab] -> [vocab]."""
    _check_pair(p, q)
    left = (p - q).clamp(min=0)
    total = left.sum()
    return left / total if total > 0 else p  # p equal to q rejects nothing, up to rounding


def verify(
    p: torch.Tensor, q: torch.Tensor, drafted: Sequence[int], draws: Sequence[float] | torch.Tensor
) -> tuple[int, torch.Tensor]:
    """How many drafted tokens are kept, and the distribution that the token after them is drawn from.

    Args:
        p: [k + 1, vocab], the target's distribution at the place of each drafted token, and after the last one.
        q: [k, vocab], what each drafted token was drawn from.
        drafted: the k tokens.
        draws: k numbers, uniform in [0, 1), one for each decision.

    Returns:
        The number kept, n; and the residual at place n, or p[k] when all are kept (the bonus token). The rows of p
        behind place n belong to a text that was not written, and are not used.

    Raises:
        InvalidInputError: rows, tokens or draws that do not belong together, or NaN.
    """
    drafted = _check_round(p, q, drafted, draws)
    for place, token in enumerate(drafted):
        if not draws[place] < acceptance(p[place, token], q[place, token]):
            return place, residual(p[place], q[place])
    return len(drafted), p[len(drafted)]


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The distribution that `sample` draws from, [..., vocab]: temperature, top-k, top-p and min-p, then softmax.

    Greedy is the distribution with all its mass on one token, so that one rule serves both.
    """
    _check_probabilities_of(logits, "logits")
    wide = torch.float32 if logits.device.type == "mps" else torch.float64
    return filter_logits(logits, params).to(wide).softmax(dim=-1)


def pick(probs: torch.Tensor, params: SamplingParams, generator: torch.Generator | None) -> int:
    """One token from probabilities [vocab]; the race of `sample`."""
    _check_probabilities_of(probs, "probs")
    an_instance("params", params, SamplingParams, "SamplingParams(...)")
    if probs.dim() != 1 or probs.numel() == 0:
        raise InvalidInputError(f"probs has shape {list(probs.shape)}; pass the probabilities of one token, [vocab]")
    if params.greedy:
        return int(probs.argmax())
    return int(sample(probs.log(), SamplingParams(), generator))  # softmax(log p) is p again


def _check_probabilities_of(tensor: Any, name: str) -> None:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.layout != torch.strided:
        raise InvalidInputError(f"{name} is {shown(tensor)}; pass a tensor of floating-point numbers")


def _check_pair(p: Any, q: Any) -> None:
    """Raise unless p and q can be compared; a NaN would be kept, as no comparison with it is true."""
    _check_probabilities_of(p, "p")
    _check_probabilities_of(q, "q")
    if p.shape != q.shape or p.layout != torch.strided or q.layout != torch.strided or p.is_meta or q.is_meta:
        raise InvalidInputError(
            f"p has shape {list(p.shape)} and q {list(q.shape)}; both give one number for each token"
        )
    if not bool((p >= 0).all()) or not bool((q >= 0).all()):
        raise InvalidInputError("p or q holds NaN or a number below 0; both are probabilities")


def _check_round(p: Any, q: Any, drafted: Any, draws: Any) -> list[int]:
    """The drafted tokens, once there are a row of q, a row of p and a draw for each, and one more row of p."""
    _check_probabilities_of(p, "p")
    _check_probabilities_of(q, "q")
    drafted = listed("drafted", drafted, "the drafted tokens")
    if p.dim() != 2 or q.dim() != 2 or len(p) != len(drafted) + 1 or q.shape != p[1:].shape:
        raise InvalidInputError(
            f"p has shape {list(p.shape)} and q {list(q.shape)} for {len(drafted)} drafted tokens; give [k + 1, vocab] "
            "and [k, vocab]"
        )
    drafted = [whole_number("a drafted token", token, 0, p.shape[1] - 1) for token in drafted]
    draws = listed("draws", draws, "a number from 0 to 1 for each drafted token")
    if len(draws) < len(drafted):
        raise InvalidInputError(f"{len(draws)} draws for {len(drafted)} drafted tokens; give one for each decision")
    for draw in draws:
        scalar = isinstance(draw, torch.Tensor) and draw.dim() == 0 and draw.is_floating_point() and not draw.is_meta
        if not 0 <= (real_number("a draw", draw) if not scalar else float(draw)) <= 1:
            raise InvalidInputError(f"a draw is {shown(draw)}; draws are numbers from 0 to 1")
    return drafted


# ---- drafts --------------------------------------------------------------------------------------------------------


class Proposal(NamedTuple):
    """Drafted tokens, and what each was drawn from: [k, vocab], or None for a draft that is certain of each."""

    token_ids: list[int]
    probs: torch.Tensor | None = None


@runtime_checkable
class Draft(Protocol):
    """Anything that guesses. It may propose fewer tokens than asked for, or none."""

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator | None
    ) -> Proposal:
        """Guess the next `num_tokens` (at least 1) tokens of the text `token_ids`."""

    def rollback(self, num_tokens: int) -> None:
        """Only the first `num_tokens` tokens of what was drafted are part of the text: forget the others."""

    def reset(self) -> None:
        """The text is over: give everything back."""


class PromptLookup:
    """Prompt lookup: find the last few tokens earlier in the text, and propose what followed them there.

    Costs next to nothing, and is right where an answer repeats its prompt: quotes, code that is edited, summaries.

    Args:
        max_ngram, min_ngram: how many last tokens to look for, the longest first.
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self.min_ngram = whole_number("min_ngram", min_ngram, 1)
        self.max_ngram = whole_number("max_ngram", max_ngram, self.min_ngram)

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator | None
    ) -> Proposal:
        """See `Draft`; the latest place that is followed by enough tokens, else the earliest one."""
        ids, num_tokens = _plain_ids(token_ids), whole_number("num_tokens", num_tokens, 1)
        for length in range(min(self.max_ngram, len(ids) - 1), self.min_ngram - 1, -1):
            found: list[int] = []
            for start in range(len(ids) - length - 1, -1, -1):
                if ids[start : start + length] == ids[-length:]:
                    found = ids[start + length : start + length + num_tokens]
                    if len(found) == num_tokens:
                        break
            if found:
                return Proposal(found)
        return Proposal([])

    def rollback(self, num_tokens: int) -> None:
        """Nothing is kept from call to call."""

    def reset(self) -> None:
        """Nothing is kept from call to call."""


class ModelDraft:
    """A small model that guesses one token after another, with a paged cache of its own.

    Args:
        llm: the engine whose tokens are guessed.
        model: the small model: a transformers model, an id or a folder. None: `some_layers` of the engine's own.
        layers: for model None: how many of the first layers, or which layers; None for the first two thirds.
        num_blocks, block_size: of its own pool; None for as many blocks as the engine has, at most what a text needs.

    Raises:
        VocabularyMismatchError: the small model has another vocabulary.
        UnsupportedModelError, ModelNotFoundError: see `ModelRunner` and `load_model`.
    """

    def __init__(
        self,
        llm: LLM,
        model: Any = None,
        *,
        layers: int | Sequence[int] | None = None,
        num_blocks: int | None = None,
        block_size: int = 16,
    ) -> None:
        _refuse_unless_llm(llm)
        tokenizer = None
        if model is None:
            model = some_layers(llm.model, layers)
        elif layers is not None:
            raise InvalidInputError("layers picks from the engine's own model; give either model or layers")
        elif isinstance(model, str | Path):
            model, tokenizer = load_model(model, device=str(llm.model.device))
        refuse_other_vocabulary(llm, model, tokenizer)
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        longest = min(llm.max_model_len, getattr(config, "max_position_embeddings", None) or llm.max_model_len)
        block_size = whole_number("block_size", block_size, 1)
        if num_blocks is None:
            num_blocks = blocks_needed(min(llm.manager.num_blocks * llm.manager.block_size, longest), block_size)
        self.runner = ModelRunner(model, whole_number("num_blocks", num_blocks, 1), block_size, prepack=True)
        self.max_len = min(longest, num_blocks * block_size)  # tokens that it can look at
        self.reset()

    def reset(self) -> None:
        """An empty cache, every block free, whatever happened before."""
        cache = self.runner.cache
        self.manager = BlockManager(cache.num_blocks, cache.block_size, watermark=0)
        self.num_computed = 0

    def propose(
        self, token_ids: Sequence[int], num_tokens: int, params: SamplingParams, generator: torch.Generator | None
    ) -> Proposal:
        """See `Draft`: the same sampling parameters as the target's, so that p and q are cut in the same way."""
        ids, num_tokens = _plain_ids(token_ids), whole_number("num_tokens", num_tokens, 1)
        num_tokens = min(num_tokens, self.max_len - len(ids) + 1)  # the last one is guessed and never read
        new, drafted, probs = ids[self.num_computed :], [], []
        if num_tokens > 0 and not new:
            raise InvalidInputError(
                f"the text has {len(ids)} tokens, and the draft has read {self.num_computed}; say with rollback(n) "
                "that only n of them belong to it, or reset() for a new text"
            )
        while len(drafted) < num_tokens:
            probs.append(probabilities(self._read(new), params))
            drafted.append(pick(probs[-1], params, generator))
            new = drafted[-1:]
        return Proposal(drafted, torch.stack(probs) if probs else None)

    def rollback(self, num_tokens: int) -> None:
        """Keep the K and V of the first `num_tokens` tokens, or of all if it has read fewer."""
        num_tokens = whole_number("num_tokens", num_tokens)
        if num_tokens < self.num_computed:
            self.manager.truncate(0, num_tokens)
            self.num_computed = num_tokens

    def _read(self, new_ids: Sequence[int]) -> torch.Tensor:
        """Logits [vocab] after the last of these tokens."""
        for start in range(0, len(new_ids), _CHUNK):
            part = new_ids[start : start + _CHUNK]
            if self.manager.seq_ids:
                self.manager.append_slots(0, len(part))
            else:
                self.manager.allocate(0, part, watermark=False)
            logits = _run(self.runner, self.manager, 0, part, self.num_computed, 1)
            self.num_computed += len(part)
        return logits[0]


def _plain_ids(token_ids: Any) -> list[int]:
    ids = listed("token_ids", token_ids, "a list of token ids")
    return [i if type(i) is int else whole_number("a token id", i) for i in ids]


_CHUNK = 512  # tokens of a prompt that a draft reads in one pass


def some_layers(model: Any, layers: int | Sequence[int] | None = None) -> Any:
    """A shallower model out of a transformers model: the same weights (shared, not copied), only some of the layers.

    Args:
        model: left as it was.
        layers: how many of the first layers, or a list of layer numbers in rising order; None for two thirds.

    Raises:
        InvalidInputError: numbers that name no layers of this model, or a model without a list of layers.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise InvalidInputError(f"model is {type(model).__name__}; pass a transformers model")
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    total = text.num_hidden_layers
    kept = _layer_numbers(layers, total)
    text.num_hidden_layers = len(kept)
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[i] for i in kept]
    lists = [n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == total]
    if not lists:
        raise InvalidInputError(f"{type(model).__name__} has no list of {total} layers to take some of")
    *parents, last = lists[0].split(".")
    shallow = inner = _shell(model, config)
    for name in parents:  # new shells on the way down to the list; everything beside it is shared
        inner._modules[name] = _shell(inner._modules[name], config)
        inner = inner._modules[name]
    inner._modules[last] = torch.nn.ModuleList([inner._modules[last][i] for i in kept])
    return shallow


def _shell(module: torch.nn.Module, config: Any) -> Any:
    """The same module with a dictionary of children, and a config, of its own."""
    shell = copy.copy(module)
    shell.__dict__["_modules"] = dict(module._modules)
    if hasattr(module, "config"):
        shell.config = config
    return shell


def _layer_numbers(layers: int | Sequence[int] | None, total: int) -> list[int]:
    if layers is None:
        layers = max(1, total * 2 // 3)
    if isinstance(layers, Sequence) and not isinstance(layers, str):
        kept = [whole_number("a layer number", i) for i in layers]
    else:
        kept = list(range(whole_number("layers", layers, 1)))
    if not kept or kept != sorted(set(kept)) or kept[-1] >= total:
        raise InvalidInputError(
            f"layers is {shown(layers)}; give 1 to {total}, or rising numbers from 0 to {total - 1}"
        )
    return kept


def refuse_other_vocabulary(llm: LLM, model: Any, tokenizer: Any = None) -> None:
    """The ratio p/q compares the same token's probabilities, so both models must number their tokens alike.

    Raises:
        VocabularyMismatchError: another size, or, where both tokenizers are known, other tokens.
    """
    _refuse_unless_llm(llm)
    if not hasattr(model, "config"):
        raise InvalidInputError(f"{type(model).__name__} is no transformers model; pass one, or a folder, or an id")
    size = model.config.get_text_config().vocab_size
    if size != llm.vocab_size:
        raise VocabularyMismatchError(
            f"the draft knows {size} tokens and the target {llm.vocab_size}; choose a draft with the target's "
            "vocabulary, or PromptLookup, which needs none"
        )
    if tokenizer is not None and llm.tokenizer is not None and tokenizer.get_vocab() != llm.tokenizer.get_vocab():
        raise VocabularyMismatchError(
            f"draft and target have {size} tokens each, but not the same ones; choose a draft with the target's "
            "tokenizer, or PromptLookup, which needs none"
        )


# ---- what came of it -----------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One pass of the target: what was drafted, how many of it were kept, and the tokens that were written."""

    drafted: tuple[int, ...]
    num_accepted: int
    written: tuple[int, ...]


@dataclass(frozen=True)
class AcceptanceStats:
    """How well the drafts did, out of the list of rounds.

    A draft behind a rejected one was never judged: `acceptance_rate` is accepted / judged, the paper's alpha; servers
    often report accepted / drafted, which is smaller.
    """

    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        for one in listed("rounds", self.rounds, "a list of rounds"):
            an_instance("a round", one, Round, "Round(drafted, num_accepted, written)")

    @property
    def target_passes(self) -> int:
        """Passes of the target that wrote tokens."""
        return len(self.rounds)

    @property
    def num_tokens(self) -> int:
        """Tokens written."""
        return sum(len(r.written) for r in self.rounds)

    @property
    def drafted(self) -> int:
        """Tokens that the draft proposed."""
        return sum(len(r.drafted) for r in self.rounds)

    @property
    def judged(self) -> int:
        """Drafted tokens that the rule was applied to: those kept, and the first rejected one of each round."""
        return sum(self.judged_at)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return sum(self.accepted_at)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens written for each pass of the target; 1 is plain decoding."""
        return self.num_tokens / max(1, self.target_passes)

    @property
    def acceptance_rate(self) -> float:
        """accepted / judged; NaN when nothing was drafted."""
        return self.accepted / self.judged if self.judged else float("nan")

    @property
    def judged_at(self) -> list[int]:
        """For each place in a draft, how often a token at that place was judged."""
        return self._at(lambda r, place: place <= r.num_accepted)

    @property
    def accepted_at(self) -> list[int]:
        """For each place in a draft, how often a token at that place was kept."""
        return self._at(lambda r, place: place < r.num_accepted)

    def _at(self, holds: Any) -> list[int]:
        longest = max((len(r.drafted) for r in self.rounds), default=0)
        return [sum(place < len(r.drafted) and holds(r, place) for r in self.rounds) for place in range(longest)]


@dataclass(frozen=True)
class SpeculativeOutput(RequestOutput):
    """What `LLM.generate` would give, and how the drafts did (all n samples together)."""

    stats: AcceptanceStats = field(default_factory=AcceptanceStats)


# ---- the loop ------------------------------------------------------------------------------------------------------


def speculative_generate(
    llm: LLM,
    prompt: Prompt,
    draft: Draft | None = None,
    sampling_params: SamplingParams | None = None,
    *,
    num_draft_tokens: int = 4,
) -> SpeculativeOutput:
    """Write a continuation as `llm.generate` would, with fewer passes of the model.

    Greedy output is that of `llm.generate`, token for token (up to near ties in half precision). Sampled output has the
    same distribution; with the same seed it is another sample, because the random numbers serve other decisions.

    Args:
        llm: the engine; the text grows in its pool of blocks, and all of them are free afterwards.
        prompt: a text, or {"prompt_token_ids": [...]}.
        draft: who guesses; None for `PromptLookup()`.
        sampling_params: see `SamplingParams`; applied to target and draft alike.
        num_draft_tokens: guesses a pass, at most. 0 is plain decoding.

    Raises:
        InvalidInputError: an input that cannot be right, before anything runs.
        VocabularyMismatchError: the draft numbers its tokens differently.
        OutOfBlocksError: the prompt does not fit the blocks that are free now.
        DraftError: the draft broke its promise.
    """
    _refuse_unless_llm(llm)
    draft = PromptLookup() if draft is None else draft
    _check_draft(llm, draft)
    num_draft_tokens = whole_number("num_draft_tokens", num_draft_tokens)
    ids = llm._prompt_ids(prompt, 0)
    (params,) = llm._params(sampling_params, 1)
    llm._whole_again()
    texts: list[_Text] = []
    for index in range(params.n):
        texts.append(_Text(llm, draft, ids, params, index, num_draft_tokens))
        texts[-1].write()
    given = prompt if isinstance(prompt, str) else prompt.get("prompt")
    stats = AcceptanceStats([r for text in texts for r in text.rounds])
    outputs = [text.output() for text in texts]
    return SpeculativeOutput("speculative", given, ids, outputs, True, texts[0].num_cached, stats)


class _Text:
    """One text while it is written: its tokens, how many of them are in the cache, and what came of each round."""

    def __init__(self, llm: LLM, draft: Draft, ids: list[int], params: SamplingParams, index: int, most: int) -> None:
        self.llm, self.draft, self.params, self.index, self.most = llm, draft, params, index, most
        self.manager, self.seq_id, self.holds_blocks = llm.manager, next(llm._numbers), False
        self.ids, self.prompt_len, self.max_len = list(ids), len(ids), llm._max_len(ids, params)
        self.generator = llm._generator(params, self.seq_id, index)
        self.stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else llm._eos)
        self.num_computed = self.num_cached = 0
        self.rounds: list[Round] = []
        self.logprobs: list[dict[int, float]] = []
        self.finish_reason: str | None = None

    def write(self) -> None:
        """Round after round until the text ends. Whatever happens, target and draft hold no block afterwards."""
        alone = not self.manager.seq_ids  # then nobody needs the watermark
        self._refuse_unless_it_fits(watermark=not alone)
        self.draft.reset()
        try:
            try:
                with self.llm._changing():  # Ctrl-C half-way: the engine starts empty, as in its own steps
                    self.num_cached = self.manager.allocate(self.seq_id, self.ids, watermark=not alone)
                    self.num_computed, self.holds_blocks = self.num_cached, True
                while self.finish_reason is None:
                    self.round()
            finally:
                self.close()
        except BaseException:
            self.close()  # again: Ctrl-C can come between the first `finally` and what it does
            raise

    def close(self) -> None:
        """Give every block back; nothing to do when the engine has started empty again. Twice does no harm."""
        self.llm._whole_again()
        if self.holds_blocks and self.llm.manager is self.manager:
            with self.llm._changing():
                self.manager.free(self.seq_id)
                self.holds_blocks = False
        self.draft.reset()

    def _still_there(self) -> None:
        if self.llm.manager is not self.manager:
            raise InterruptedTextError("another call was interrupted while this text was written; start it again")

    def _refuse_unless_it_fits(self, watermark: bool) -> None:
        manager = self.manager
        if manager.can_allocate(self.ids, watermark=watermark) is not AllocStatus.OK:
            raise OutOfBlocksError(
                f"a prompt of {len(self.ids)} tokens needs {blocks_needed(len(self.ids), manager.block_size)} blocks, "
                f"and {manager.num_free_blocks} of {manager.num_blocks} are free: make the pool larger, or wait"
            )

    def round(self) -> None:
        """Draft, verify in one pass, write, roll back."""
        most = self._drafts_that_fit()
        if most < 0:
            self.finish_reason = "out_of_blocks"
            return
        proposal = self._propose(most)
        logits = self._read(proposal.token_ids)  # [k + 1, vocab]
        p = probabilities(logits, self.params)
        draws = torch.rand(len(proposal.token_ids), generator=self.generator, dtype=torch.float64)
        kept, after = verify(p, self._draft_probs(proposal, p), proposal.token_ids, draws)
        token = pick(after, self.params, self.generator)
        self._write(proposal.token_ids, kept, token, logits)
        self._roll_back()

    def _drafts_that_fit(self) -> int:
        """How many tokens may be drafted: the pass itself writes one more. -1: the last token finds no slot."""
        self._still_there()
        manager = self.manager
        held = manager.num_tokens(self.seq_id)
        for count in range(min(self.most, self.max_len - len(self.ids) - 1), -1, -1):
            new = len(self.ids) + count - held
            if new == 0 or manager.can_append(self.seq_id, new):
                return count
        return -1

    def _propose(self, most: int) -> Proposal:
        if most == 0:
            return Proposal([])
        proposal = self.draft.propose(tuple(self.ids), most, self.params, self.generator)
        _check_proposal(proposal, most, self.llm.vocab_size)
        return proposal

    def _draft_probs(self, proposal: Proposal, p: torch.Tensor) -> torch.Tensor:
        """q [k, vocab] beside p; a draft that is certain has all its mass on its token."""
        if proposal.probs is not None:
            return proposal.probs.to(p.device, p.dtype)
        q = torch.zeros_like(p[:-1])
        q[range(len(q)), proposal.token_ids] = 1.0
        return q

    def _read(self, drafted: list[int]) -> torch.Tensor:
        """One pass over the tokens that are not computed yet and all drafted ones: logits [len(drafted) + 1, vocab].

        The last token of the text and the drafted ones stand in one packed row; a long prompt comes in chunks before.
        """
        self._still_there()  # a draft may have used the engine
        manager, runner = self.manager, self.llm.runner
        missing = len(self.ids) + len(drafted) - manager.num_tokens(self.seq_id)
        if missing:
            with self.llm._changing():
                copies = manager.append_slots(self.seq_id, missing)
            runner.cache.copy_blocks(copies)
        new, chunk = self.ids[self.num_computed :], self.llm.scheduler.max_num_batched_tokens
        while len(new) > chunk:
            _run(runner, manager, self.seq_id, new[:chunk], self.num_computed, 1)
            self.num_computed += chunk
            new = new[chunk:]
        return _run(runner, manager, self.seq_id, [*new, *drafted], self.num_computed, len(drafted) + 1)

    def _write(self, drafted: list[int], kept: int, token: int, logits: torch.Tensor) -> None:
        """Append what was accepted and the token after it, up to the first that ends the text."""
        computed = len(self.ids) + kept  # the last token written is not in the cache yet, as always
        written: list[int] = []
        for token_id, row in zip([*drafted[:kept], token], logits, strict=False):
            written.append(token_id)
            if self.params.logprobs is not None:
                self.logprobs.append(best_logprobs(row, token_id, self.params.logprobs))
            if token_id in self.stop_ids:
                self.finish_reason = "stop"
                break
        self.ids += written
        self.num_computed = min(computed, len(self.ids))  # unless the text ended inside the draft
        self.rounds.append(Round(tuple(drafted), kept, tuple(written)))
        if self.finish_reason is None and len(self.ids) >= self.max_len:
            self.finish_reason = "length"

    def _roll_back(self) -> None:
        """Give back the slots of rejected drafts, here and in the draft's own cache."""
        with self.llm._changing():
            self.manager.truncate(self.seq_id, self.num_computed)
            self.manager.mark_computed(self.seq_id, self.num_computed, self.ids)  # rejected tokens never get there
        self.draft.rollback(self.num_computed)

    def output(self) -> CompletionOutput:
        """As the engine reports it."""
        new = self.ids[self.prompt_len :]
        text = self.llm.tokenizer.decode(new, skip_special_tokens=True) if self.llm.tokenizer else ""
        asked = self.params.logprobs is not None
        total = sum(entry[token] for entry, token in zip(self.logprobs, new, strict=True)) if asked else None
        stopped_by: int | str | None = new[-1] if new and new[-1] in self.params.stop_token_ids else None
        if self.finish_reason == "out_of_blocks":
            stopped_by = f"{len(self.ids)} tokens fill the blocks that are free; make a larger pool"
        return CompletionOutput(
            self.index, text, new, total, self.logprobs if asked else None, self.finish_reason, stopped_by
        )


def _run(
    runner: ModelRunner, manager: BlockManager, seq_id: int, new_ids: Sequence[int], num_computed: int, rows: int
) -> torch.Tensor:
    """One pass over a sequence's new tokens, which have slots already: logits [rows, vocab] of the last `rows`."""
    batch = Batch()
    batch.add(list(new_ids), num_computed, manager.block_table(seq_id), manager.block_size)
    return runner.run(batch, range(len(new_ids) - rows, len(new_ids)))


def _refuse_unless_llm(llm: Any) -> None:
    if not isinstance(llm, LLM):
        raise InvalidInputError(f"llm is {type(llm).__name__}; pass the engine, LLM(...)")


def _check_draft(llm: LLM, draft: Any) -> None:
    if not isinstance(draft, Draft) or isinstance(draft, type):
        what = f"the class {draft.__name__}" if isinstance(draft, type) else f"{type(draft).__name__}"
        raise InvalidInputError(
            f"draft is {what}; pass PromptLookup(), ModelDraft(llm, model), or any object with propose, rollback, reset"
        )
    size = getattr(draft, "vocab_size", llm.vocab_size)
    if size != llm.vocab_size:
        raise VocabularyMismatchError(
            f"the draft knows {size} tokens and the target {llm.vocab_size}; make it for this engine"
        )


def _check_proposal(proposal: Any, most: int, vocab_size: int) -> None:
    """What the proof needs: each drafted token can have come from the distribution that is reported for it."""
    drafted = getattr(proposal, "token_ids", None)
    if not isinstance(proposal, Proposal) or not isinstance(drafted, Sequence) or len(drafted) > most:
        raise DraftError(f"propose returned {shown(proposal)}; return a Proposal of at most {most} tokens")
    wrong = [t for t in drafted if isinstance(t, bool) or not (isinstance(t, int) and 0 <= t < vocab_size)]
    if wrong:
        raise DraftError(f"the draft proposed {shown(wrong[0])}; token ids are ints from 0 to {vocab_size - 1}")
    if proposal.probs is not None:
        _check_probs(proposal.probs, list(drafted), vocab_size)


def _check_probs(probs: Any, drafted: list[int], vocab_size: int) -> None:
    wanted = [len(drafted), vocab_size]
    if not isinstance(probs, torch.Tensor) or list(probs.shape) != wanted or not probs.is_floating_point():
        what = (
            f"shape {list(probs.shape)} in {probs.dtype}" if isinstance(probs, torch.Tensor) else type(probs).__name__
        )
        raise DraftError(f"the draft's probabilities have {what}, not {wanted} in floating point")
    if not drafted:
        return
    sums, least = probs.sum(dim=-1, dtype=torch.float32), probs.min()  # NaN anywhere shows in the sum
    if not bool(((sums - 1).abs() < _SUM_ERROR).all()) or least < 0:
        raise DraftError(
            f"the draft's probabilities sum to {sums.tolist()}, the smallest is {float(least):.3g}; each row must be a "
            "distribution: no number below 0, and a sum of 1"
        )
    if not bool((probs[range(len(drafted)), drafted] > 0).all()):
        raise DraftError("the draft proposed a token to which it gives probability 0: it cannot have drawn it")


_SUM_ERROR = 1e-2  # of a row of probabilities in half precision


# ---- what to expect ------------------------------------------------------------------------------------------------


def expected_tokens(rate: float, num_draft_tokens: int) -> float:
    """Tokens a pass when each draft is kept with the same probability a: 1 + a + a^2 + ... + a^k.

    Leviathan et al. 2023, equation 1, which sums it up as (1 - a^(k + 1)) / (1 - a).
    """
    num_draft_tokens = whole_number("num_draft_tokens", num_draft_tokens, 0, MOST_DRAFTED)
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise InvalidInputError(f"rate is {shown(rate)}; it is the probability that a draft is kept, from 0 to 1")
    return sum(rate**place for place in range(num_draft_tokens + 1))


def expected_speedup(rate: float, num_draft_tokens: int, draft_cost: float, pass_cost: float = 1.0) -> float:
    """How many times faster than plain decoding (Leviathan et al., theorem 3.8, with the price of a longer pass).

    Args:
        rate: probability that a draft is kept, 0 to 1.
        num_draft_tokens: k.
        draft_cost: time of one drafted token, in plain steps of the target.
        pass_cost: time of the target's pass over k + 1 tokens, in plain steps; 1 where it costs no more.
    """
    num_draft_tokens = whole_number("num_draft_tokens", num_draft_tokens, 0, MOST_DRAFTED)
    draft_cost = real_number("draft_cost, in steps of the target,", draft_cost, least=0)
    pass_cost = real_number("pass_cost, in steps of the target,", pass_cost, above=0)
    return expected_tokens(rate, num_draft_tokens) / (pass_cost + num_draft_tokens * draft_cost)
