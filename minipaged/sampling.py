"""Chapter 1. From logits to the next token: what temperature, top-k, top-p and min-p do, and how a token is drawn.

The model gives one score (a logit) per token of its vocabulary. What is written next is decided here, in this order:

    logits -> / temperature -> top-k -> top-p -> min-p -> softmax -> a race: each token waits a random time,
              sharpen/flatten  cut the tail, three ways              the shorter the more probable; the first one wins

Removed tokens get a logit of -inf, so `softmax(filter_logits(logits, params))` is the exact distribution that `sample`
draws from; the tests prove it. Left out: penalties for repetition, grammars, and beam search (chapter 11).
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from minipaged.errors import InvalidInputError, an_instance, listed, shown, whole_number

GREEDY_BELOW = 1e-5  # a temperature below this means greedy, as in vLLM: dividing by less would overflow
_SEED_LIMIT = 2**63


class LogitsError(InvalidInputError):
    """Logits from which no token can be drawn: NaN, +inf, or every token at -inf."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request turns logits into tokens, and when it stops. Names and meanings are vLLM's.

    Attributes:
        n: samples per prompt; sample i of n equals a lone request with `seed + i`.
        temperature: logits are divided by it; 0 is greedy (always the most probable token).
        top_k: keep the k most probable tokens; 0 keeps all. Tokens that tie with the k-th are all kept.
        top_p: keep the smallest set of tokens whose mass is at least top_p; 1.0 keeps all.
        min_p: keep the tokens at least min_p times as probable as the most probable one; 0.0 keeps all.
        max_tokens: the request ends with "length" after this many new tokens.
        stop_token_ids: the request ends with "stop" after any of these.
        ignore_eos: go on after the model's own end-of-sequence token.
        seed: None draws differently every time.
        logprobs: how many of the best tokens' log-probabilities to report beside each chosen one; None for none.

    Raises:
        InvalidInputError: a value that cannot be right, when the object is made.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 16
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen: plain numbers replace numpy's once, here
        put(self, "n", _whole("n", self.n, 1, "ask for at least one sample"))
        put(self, "temperature", _real("temperature", self.temperature))
        _refuse_unless(self.temperature >= 0, "temperature", self.temperature, "at least 0; 0 is greedy")
        put(self, "top_k", _whole("top_k", self.top_k, 0, "0 keeps every token"))
        put(self, "top_p", _real("top_p", self.top_p))
        _refuse_unless(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1; 1.0 keeps every token")
        put(self, "min_p", _real("min_p", self.min_p))
        _refuse_unless(0 <= self.min_p < 1, "min_p", self.min_p, "at least 0 and below 1; 0.0 keeps every token")
        put(self, "max_tokens", _whole("max_tokens", self.max_tokens, 1, "ask for at least one new token"))
        put(self, "stop_token_ids", _stop_ids(self.stop_token_ids))
        _refuse_unless(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        if self.seed is not None:
            put(self, "seed", _whole("seed", self.seed, 0, "None draws differently every time"))
            fits = self.seed + self.n <= _SEED_LIMIT
            _refuse_unless(fits, "seed", self.seed, f"such that seed + n is at most 2**63 (n is {self.n})")
        if self.logprobs is not None:
            put(self, "logprobs", _whole("logprobs", self.logprobs, 0, "None reports none"))

    @property
    def greedy(self) -> bool:
        """True when the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW


def filter_logits(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Apply temperature, then top-k, then top-p, then min-p; removed tokens come back as -inf.

    The order is that of transformers and vLLM. Top-p is Holtzman et al. 2020, section 3.1; min-p is Nguyen et al. 2024,
    section 3. Greedy keeps one token, so that the softmax of the result is always what `sample` draws from.

    Args:
        logits: [vocab] or [batch, vocab], floating point; not changed.
        params: the same for every row.

    Returns:
        A new tensor of the same shape; float16 and bfloat16 come back as float32.

    Raises:
        LogitsError: a row holds NaN or +inf, or nothing but -inf.
        InvalidInputError: not a floating-point tensor of one or two dimensions with at least one token.
    """
    logits, params = _checked(logits), an_instance("params", params, SamplingParams, "SamplingParams(...)")
    if params.greedy:
        best = logits.argmax(dim=-1, keepdim=True)  # ties: the lowest id
        return torch.full_like(logits, -math.inf).scatter(-1, best, logits.gather(-1, best))
    logits = logits / params.temperature
    if 0 < params.top_k < logits.shape[-1]:
        logits = _top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = _top_p(logits, params.top_p)
    if params.min_p > 0:
        logits = _min_p(logits, params.min_p)
    return logits


def sample(logits: torch.Tensor, params: SamplingParams, generator: torch.Generator | None = None) -> torch.Tensor:
    """Choose the next token of each row: the most probable one when greedy, otherwise a random draw.

    Drawing is a race (the exponential form of the Gumbel-max trick): token i waits an exponential time of rate p_i, and
    the first to arrive is taken, which is token i with probability p_i. Unlike a dart at a strip of probabilities, the
    result hardly ever changes when logits change in their last digits, as they do when requests run in a batch. The
    generator is used up row after row, one number per token of the vocabulary.

    Args:
        logits: [vocab] or [batch, vocab], as the model gave them.
        params: see `filter_logits`.
        generator: this request's own (`make_generator`); None uses torch's global one. Not used when greedy.

    Returns:
        Token ids, int64, on the device of the logits: a scalar tensor for [vocab], [batch] for [batch, vocab].

    Raises:
        LogitsError, InvalidInputError: see `filter_logits`.
    """
    an_instance("params", params, SamplingParams, "SamplingParams(...)")
    if generator is not None:
        an_instance("generator", generator, torch.Generator, "make_generator(params), or None for torch's own")
    if params.greedy:
        return _checked(logits).argmax(dim=-1)  # torch takes the first of equal values: the lowest id
    probs = _wide(filter_logits(logits, params)).softmax(dim=-1)
    where = generator.device if generator is not None else "cpu"
    # Drawn in float64 where the generator lives: one CPU generator gives the same numbers for logits on any device.
    uniform = torch.rand(probs.shape, generator=generator, device=where, dtype=torch.float64)  # in [0, 1)
    wait = -torch.log1p(-uniform)  # exponential with rate 1; divided by p it has rate p
    wait = wait.to(probs.device, probs.dtype).clamp(min=torch.finfo(probs.dtype).tiny)  # 0 / 0 must not win
    return (probs / wait).argmax(dim=-1)  # the largest 1 / time; a removed token has 0


def make_generator(params: SamplingParams, device: str | torch.device = "cpu", index: int = 0) -> torch.Generator:
    """The random numbers of one request: its own generator, so that no other request can change what it draws.

    Args:
        params: `seed` starts it; None starts it from the system's randomness.
        device: where it draws. "cpu" serves logits on any device, with the same numbers.
        index: which of the n samples: sample `index` starts from `seed + index`.
    """
    an_instance("params", params, SamplingParams, "SamplingParams(...)")
    index = whole_number("index", index)
    try:
        generator = torch.Generator(device=device)
    except (TypeError, RuntimeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f'no generator on device {shown(device)} ({reason}); use "cpu"') from error
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed + index)
    return generator


def eos_token_ids(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """Every id that ends a text: the tokenizer's and the model's generation config's, together.

    The two often differ: a chat model may end a turn with one token and a document with another. Either may be an int,
    a list, or None; `model` or `tokenizer` may be None too.
    """
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, Iterable) else [] if ids is None else [ids])
    return frozenset(int(i) for i in found if i is not None)


def _top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Remove what is below the k-th largest logit; equals of the k-th stay, as in transformers and vLLM."""
    kth = logits.topk(k, dim=-1).values[..., -1:]  # [..., 1]
    return logits.masked_fill(logits < kth, -math.inf)


def _top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep token i iff the mass of the tokens before it, most probable first, is still below p.

    So the token that crosses p stays, one that comes after p is reached exactly does not, and the first one always
    stays. Of equal logits the lower id comes first.
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    probs = _wide(ordered).softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs  # mass of the more probable tokens
    # .5 + .3 must count as having reached .8 although neither is exact in binary: a few roundings of slack.
    keep = before < p - 4 * torch.finfo(logits.dtype).eps
    keep[..., 0] = True
    return logits.masked_fill(~torch.zeros_like(keep).scatter(-1, ids, keep), -math.inf)


def _min_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the tokens at least p times as probable as the best one; the ratio needs no normalising."""
    ratio = (_wide(logits) - _wide(logits).amax(dim=-1, keepdim=True)).exp()
    return logits.masked_fill(ratio < p * (1 - 4 * torch.finfo(logits.dtype).eps), -math.inf)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """float64, so that sums over 50,000 tokens are exact enough; float32 on Apple's GPU, which has no wider type."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def _checked(logits: torch.Tensor) -> torch.Tensor:
    """The logits in at least float32, once they are known to be usable."""
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        kind = logits.dtype if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InvalidInputError(f"logits are {kind}; pass a floating-point torch tensor [vocab] or [batch, vocab]")
    if logits.is_meta or logits.layout != torch.strided:
        raise InvalidInputError(f"logits are {logits.layout} on {logits.device}; pass a tensor that holds its numbers")
    if logits.dim() not in (1, 2) or logits.shape[-1] == 0:
        raise InvalidInputError(f"logits have shape {list(logits.shape)}; pass [vocab] or [batch, vocab], vocab >= 1")
    logits = logits if logits.dtype == torch.float64 else logits.float()
    best = logits.amax(dim=-1)  # NaN if any is NaN
    if not best.isfinite().all():
        rows = best.reshape(-1)
        row = int((~rows.isfinite()).nonzero()[0])
        value = float(rows[row])
        what = "NaN" if math.isnan(value) else "+inf" if value > 0 else "nothing but -inf"
        raise LogitsError(
            f"row {row} of the logits holds {what}, so no token can be drawn; "
            "look for an overflow in the model (a wider dtype helps) or for a mask that removes every token"
        )
    return logits


def _refuse_unless(right: bool, name: str, value: Any, limit: str) -> None:
    if not right:
        raise InvalidInputError(f"{name} is {shown(value)}; it must be {limit}")


def _whole(name: str, value: Any, least: int, hint: str) -> int:
    """A whole number of at least `least`, as a plain int; True is not a number here."""
    limit = f"a whole number of at least {least}; {hint}"
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # torch raises both
        number = None
    right = number is not None and not isinstance(value, bool) and least <= number < 2**63
    _refuse_unless(right, name, value, limit)
    return int(number)  # type: ignore[arg-type]


def _real(name: str, value: Any) -> float:
    """A finite number, as a plain float."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if is_number else math.nan
    except OverflowError:
        number = math.inf
    _refuse_unless(math.isfinite(number), name, value, "a finite number")
    return number


def _stop_ids(ids: Any) -> tuple[int, ...]:
    is_list = isinstance(ids, Iterable) and not isinstance(ids, str | bytes)
    _refuse_unless(is_list, "stop_token_ids", ids, "a list of token ids, such as [2]; () stops at none")
    found = listed("stop_token_ids", ids, "a list of token ids, such as [2]; () stops at none")
    return tuple(_whole("stop_token_ids", i, 0, "token ids start at 0") for i in found)
