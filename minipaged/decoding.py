"""Chapter 1. The textbook loop: one pass of the model, one new token, put it at the end, again.

    [The, capital, of, France, is] -> model -> logits after the last token -> sample -> " Paris"
    [The, capital, of, France, is, Paris] -> model -> ... until an end token or max_tokens

Without a cache every step reads the whole text again. With one (transformers' own; chapter 4 opens the box) the prompt
is read once and then each step feeds the one token that the model has not seen, at position len - 1. The tests prove
that the logits are the same. Left out: batches of requests, which chapter 10 schedules.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from minipaged.errors import InvalidInputError, listed, shown, whole_number
from minipaged.sampling import SamplingParams, eos_token_ids, make_generator, sample

_INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not yet, or never, a whole character


@dataclass(frozen=True)
class Generation:
    """What the loop wrote.

    Attributes:
        token_ids: the new tokens, the one that stopped it included.
        finish_reason: "stop" after an end or stop token, "length" after `max_tokens`.
        stop_reason: the id out of `stop_token_ids` that stopped it; None for the model's own end token or "length".
    """

    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    stop_reason: int | None = None


def generate_ids(
    model: Any,
    prompt_ids: Sequence[int] | torch.Tensor,
    params: SamplingParams | None = None,
    *,
    use_cache: bool = True,
    eos_ids: Collection[int] | None = None,
) -> Generation:
    """Continue one prompt, token by token.

    Args:
        model: a transformers causal language model.
        prompt_ids: token ids, a list or a tensor [len].
        params: how to choose tokens and when to stop; None for the defaults.
        use_cache: keep the keys and values of earlier tokens instead of computing them again: same logits, less work.
        eos_ids: ids that end a text; None asks the model's generation config.

    Raises:
        InvalidInputError: an empty prompt, an id outside the vocabulary, a text that would outgrow the model's
            positions, or params.n above 1 (this loop writes one text).
        LogitsError: the model gave logits from which no token can be drawn.
    """
    ids, params, eos = _prepared(model, prompt_ids, params, eos_ids)
    tokens = list(_loop(model, ids, params, use_cache, eos))
    return _finished(tokens, params, eos)


def stream(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int] | torch.Tensor,
    params: SamplingParams | None = None,
    *,
    use_cache: bool = True,
) -> Generator[str, None, Generation]:
    """Continue one prompt and hand out the text as it is written, never half a character.

    The pieces join exactly to `tokenizer.decode(all new ids, skip_special_tokens=True)`. Ends at the ids of the
    tokenizer and of the model's generation config. A generator: its return value is the `Generation`.

    Raises:
        InvalidInputError: as `generate_ids`, at the call and not at the first piece.
    """
    prompt_ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
    ids, params, eos = _prepared(model, prompt_ids, params, eos_token_ids(model, tokenizer))

    def pieces() -> Generator[str, None, Generation]:
        tokens, text = [], TextStream(tokenizer)
        for token in _loop(model, ids, params, use_cache, eos):
            tokens.append(token)
            if piece := text.push(token):
                yield piece
        if rest := text.finish():
            yield rest
        return _finished(tokens, params, eos)

    return pieces()


class TextStream:
    """Turns token ids into text as they come, holding back a character whose last token is still missing.

    A token is a run of bytes, and a character may be several tokens (好 is two here). Two marks into the list of ids:

        ids  [ decoded and shown | shown, kept for context | not shown yet ]
                                 ^ start                   ^ shown

    The new piece is what decoding from `start` adds to decoding start..shown; the context matters to decoders that
    treat the first token of a text in a special way. Exact for byte-level tokenizers (GPT-2, Llama 3, Qwen, SmolLM2);
    decoders that judge a whole run of bytes at once (SentencePiece's byte fallback) may revise a broken character.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._start = 0
        self._shown = 0

    def push(self, token_id: int) -> str:
        """Add one token; return the text that is now certain, often one word, sometimes nothing."""
        self.ids.append(token_id)
        piece = self._piece()
        if not piece or piece.endswith(_INCOMPLETE):
            return ""
        self._start, self._shown = self._shown, len(self.ids)
        return piece

    def finish(self) -> str:
        """The text still held back once no token will follow: a broken character, as the decoder writes it."""
        piece = self._piece()
        self._start, self._shown = self._shown, len(self.ids)
        return piece

    def _piece(self) -> str:
        before = self._decode(self.ids[self._start : self._shown])
        return self._decode(self.ids[self._start :])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def left_pad(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a rectangle of prompts of different lengths, padded on the left, so that all end in the last column.

    Padding must not shift a text: positions count the real tokens of each row, so they come from the mask.

    Returns:
        input_ids, attention_mask (1 = real), position_ids; each int64 [len(prompts), longest]. For the next token of
        each row append a column of ones to the mask and use the row's sum minus 1 as its position.

    Raises:
        InvalidInputError: no prompt, or an empty one.
    """
    wanted = "a list of prompts, each a list of token ids"
    prompts = [listed("a prompt", prompt, wanted) for prompt in listed("prompts", prompts, wanted)]
    prompts = [[whole_number("a token id", token) for token in prompt] for prompt in prompts]
    if not prompts or not all(prompts):
        raise InvalidInputError(f"the prompts have lengths {[len(p) for p in prompts]}; each needs at least one token")
    pad_id = whole_number("pad_id", pad_id)  # None in many tokenizers: any id will do, since the mask hides it
    longest = max(map(len, prompts))
    gaps = [longest - len(prompt) for prompt in prompts]
    input_ids = torch.tensor([[pad_id] * gap + [*prompt] for gap, prompt in zip(gaps, prompts, strict=True)])
    mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps])
    position_ids = (mask.cumsum(dim=-1) - 1).clamp(min=0)  # a pad's own position is never looked at
    return input_ids, mask, position_ids


def _loop(model: Any, prompt: list[int], params: SamplingParams, use_cache: bool, eos: frozenset[int]) -> Iterator[int]:
    """The loop itself: yields new token ids until an end token or max_tokens."""
    generator, ends = make_generator(params), eos.union(params.stop_token_ids)
    ids, fresh, cache = list(prompt), list(prompt), None  # fresh: what the model has not read yet
    for _ in range(params.max_tokens):
        if use_cache:
            logits, cache = _read(model, fresh, len(ids) - len(fresh), cache)
        else:
            logits, _ = _read(model, ids, 0, None, keep=False)
        token = int(sample(logits, params, generator))
        yield token
        if token in ends:
            return
        ids.append(token)
        fresh = [token]


@torch.inference_mode()
def _read(model: Any, ids: list[int], first: int, cache: Any, keep: bool = True) -> tuple[torch.Tensor, Any]:
    """One pass over `ids`, the first of which stands at position `first`: (logits after the last one, cache)."""
    input_ids = torch.tensor([ids], device=model.device)  # [1, new]
    position_ids = torch.arange(first, first + len(ids), device=model.device).unsqueeze(0)  # [1, new]
    name = _cache_name(model)
    out = model(input_ids=input_ids, position_ids=position_ids, use_cache=keep, **{name: cache})
    cache = getattr(out, name, None)
    if keep and cache is None:
        raise InvalidInputError(f"{type(model).__name__} hands back no cache; pass use_cache=False")
    return out.logits[0, -1], cache  # [vocab]


def _cache_name(model: Any) -> str:
    """transformers 5.24 calls `cache` what was `past_key_values` before, in calls and in results."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _prepared(
    model: Any, prompt_ids: Any, params: SamplingParams | None, eos_ids: Collection[int] | None
) -> tuple[list[int], SamplingParams, frozenset[int]]:
    """Everything that can be refused is refused here, before the first pass: (ids, params, end ids)."""
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise InvalidInputError(f"params is {shown(params)}; pass SamplingParams(...) or None")
    if not hasattr(model, "config"):
        raise InvalidInputError(f"model is {type(model).__name__}; pass a loaded transformers model")
    if getattr(model, "training", False):
        raise InvalidInputError(f"{type(model).__name__} is in training mode, with dropout: call model.eval() first")
    if params.n != 1:
        raise InvalidInputError(f"n is {params.n}; this loop writes one text: call it with n=1 and seed, seed + 1, ...")
    ids = _plain_ids(prompt_ids, model.config.get_text_config().vocab_size)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and len(ids) + params.max_tokens > limit:
        raise InvalidInputError(
            f"{len(ids)} prompt tokens and max_tokens={params.max_tokens} make {len(ids) + params.max_tokens}, and "
            f"this model has positions for {limit}; shorten the prompt or lower max_tokens"
        )
    eos = (
        frozenset()
        if params.ignore_eos
        else frozenset(
            eos_token_ids(model)
            if eos_ids is None
            else map(_end_id, listed("eos_ids", eos_ids, "a list of token ids, or None for the model's own"))
        )
    )
    return ids, params, eos


def _end_id(token: Any) -> int:
    """A plain int: a tensor's element is equal to no other object in a set, and so would never end a text."""
    return whole_number("an id of eos_ids", token)


def _plain_ids(prompt_ids: Any, vocab_size: int) -> list[int]:
    """The prompt as plain ints, each known to be in the vocabulary."""
    if isinstance(prompt_ids, torch.Tensor):
        if prompt_ids.dim() != 1 or prompt_ids.is_floating_point():
            raise InvalidInputError(
                f"prompt_ids is a {prompt_ids.dtype} tensor of shape {list(prompt_ids.shape)}; pass integers [len]"
            )
        prompt_ids = prompt_ids.tolist()
    if isinstance(prompt_ids, (str, bytes)):
        raise InvalidInputError(
            f"prompt_ids is the text {prompt_ids[:20]!r}; encode it first: tokenizer(text).input_ids"
        )
    if not isinstance(prompt_ids, Iterable):
        raise InvalidInputError(f"prompt_ids is {shown(prompt_ids)}; pass a list of token ids")
    ids = list(prompt_ids)
    if not ids:
        raise InvalidInputError("the prompt has 0 tokens and the model needs 1 to predict from; pass a start token")
    for place, token in enumerate(ids):
        is_whole = isinstance(token, numbers.Integral) and not isinstance(token, bool)
        if not is_whole or not 0 <= token < vocab_size:
            raise InvalidInputError(
                f"token {place} of the prompt is {token!r}; ids go from 0 to {vocab_size - 1} in this model: "
                "was the text encoded with the model's own tokenizer?"
            )
    return [int(token) for token in ids]


def _finished(tokens: list[int], params: SamplingParams, eos: frozenset[int]) -> Generation:
    last = tokens[-1]
    if last in eos:
        return Generation(tokens, "stop")
    if last in params.stop_token_ids:
        return Generation(tokens, "stop", last)
    return Generation(tokens, "length")
