"""Chapter 11. Beam search on paged memory: k texts grow side by side, and share every block that they agree on.

A beam is a text so far and the sum of its tokens' log-probabilities. In every step each beam is continued by every
token, and the k best of all these continuations are the beams of the next step (Kwon et al., SOSP 2023, section 4.4):

    beams       0 ---- 0 ---- 0         a beam that nobody continues is freed: only its own blocks come back
                1 -+-- 1   +- 1         a beam that two continue is forked: its table is copied, no block is
                2  +-- 2 --+- 2         whoever writes into a shared block copies it first (copy-on-write)

One pass of the model a step, all beams packed. What counts as best, and when to stop, is what transformers says, token
for token: `length_penalty`, `early_stopping` and the spare candidates that replace beams which end. Left out: sampling
beams, groups of diverse beams, several prompts at once.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from minipaged.block_manager import AllocStatus, OutOfBlocksError
from minipaged.engine import LLM, Prompt
from minipaged.errors import InvalidInputError, MinipagedError, a_function, shown, whole_number, yes_or_no
from minipaged.model_runner import Batch
from minipaged.sampling import LogitsError, SamplingParams
from minipaged.sharing import next_beams


@dataclass(frozen=True)
class BeamSearchSequence:
    """One finished text.

    Attributes:
        tokens: the prompt's tokens and the new ones, as vLLM and transformers return them.
        token_ids: the new ones alone; the token that stopped it is among them.
        text: of `token_ids`, without special tokens; empty for a model without a tokenizer.
        cum_logprob: sum of the log-probabilities of `token_ids`.
        score: cum_logprob / len(token_ids) ** length_penalty, by which texts are compared.
        finish_reason: "stop" or "length".
        stop_reason: the id out of `stop_token_ids` that ended it, or None.
    """

    tokens: list[int]
    token_ids: list[int]
    text: str
    cum_logprob: float
    score: float
    finish_reason: str
    stop_reason: int | None = None


@dataclass(frozen=True)
class FinishedBeam:
    """A text that ended in some step: the beam of the step before that it continues, its last token, and its score."""

    parent: int
    token_id: int
    score: float


@dataclass(frozen=True)
class BeamStep:
    """What one step chose, and where its beams lie: enough to draw the tree and the memory under it.

    Lists have one entry a beam, the best one first. In the step that ends the search nothing goes on: they are empty.

    Attributes:
        number: new tokens of every beam, from 1.
        parents: the beam of the step before that each beam continues, as an index; in step 1 the prompt, 0.
        token_ids: the token that each beam added.
        cum_logprobs: sum of the log-probabilities of its new tokens.
        block_tables: its physical blocks, with a slot for the added token.
        ref_counts: for every block in these tables, how many tables name it.
        copies: (source, target) blocks that were copied before they were written.
        finished: texts that ended in this step.
    """

    number: int
    parents: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    cum_logprobs: list[float] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)
    ref_counts: dict[int, int] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    finished: list[FinishedBeam] = field(default_factory=list)


@dataclass(frozen=True)
class BeamSearchOutput:
    """What came of one prompt.

    Attributes:
        sequences: finished texts, the best score first.
        num_steps: tokens chosen one after another, which is also the number of passes of the model, if the prompt fits
            one.
        steps: one `BeamStep` each if `record` was asked for, else empty. `Saving.of_tables(step.block_tables for step
            in steps)` says what sharing saved.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]
    num_steps: int
    steps: list[BeamStep] = field(default_factory=list)


class InterruptedSearchError(MinipagedError):
    """The engine started empty again while a search ran on it, and the search's blocks are gone."""


def beam_search(
    llm: LLM,
    prompt: Prompt,
    num_beams: int,
    *,
    max_tokens: int = 16,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    num_return_sequences: int | None = None,
    ignore_eos: bool = False,
    stop_token_ids: Sequence[int] = (),
    record: bool = False,
    on_step: Callable[[BeamStep], Any] | None = None,
) -> BeamSearchOutput:
    """The texts with the best scores that a search over `num_beams` beams finds.

    Token for token what transformers' `generate(num_beams=..., do_sample=False)` gives; one beam is greedy decoding.
    The blocks come out of the pool of `llm`, beside those of its requests, and all are free again afterwards, whatever
    happens.

    Args:
        llm: an engine; its requests go on afterwards as if nothing had been.
        prompt: a text, or {"prompt_token_ids": [...]}.
        num_beams: beams in every step (vLLM: beam_width).
        max_tokens: the search ends after this many new tokens.
        length_penalty: a text's score is cum_logprob / length ** length_penalty, the length counted in new tokens. Sums
            of logarithms are negative: above 0 long texts win, below 0 short ones.
        early_stopping: when to stop, once `num_beams` texts have ended. True: at once. False: when the best beam's
            score, as if it ended now, is not better than the worst of them. "never": when it could not be better at
            any length up to the limit (for a length penalty above 0: as if it reached the limit at no cost).
        num_return_sequences: how many texts to return; None for `num_beams`.
        ignore_eos: go on after the model's own end-of-sequence tokens.
        stop_token_ids: more tokens that end a text.
        record: keep a `BeamStep` of every step.
        on_step: called with each `BeamStep` as it is made; what it raises ends the search.

    Raises:
        InvalidInputError: an argument that cannot be right, before anything runs.
        OutOfBlocksError: the pool has no room for the prompt, or for the beams half-way.
        LogitsError: the model gave NaN.
    """
    if not isinstance(llm, LLM):
        raise InvalidInputError(f"llm is {type(llm).__name__}; pass the engine, LLM(...)")
    yes_or_no("record", record)
    if on_step is not None:
        a_function("on_step", on_step, "a function that takes a BeamStep, or None")
    rules = _Rules.checked(llm, num_beams, max_tokens, length_penalty, early_stopping, ignore_eos, stop_token_ids)
    wanted = (
        num_beams if num_return_sequences is None else whole_number("num_return_sequences", num_return_sequences, 1)
    )
    if wanted > num_beams:
        raise InvalidInputError(f"num_return_sequences is {wanted} with {num_beams} beams; ask for at most one a beam")
    ids = llm._prompt_ids(prompt, 0)
    steps: list[BeamStep] = []
    listeners = [*([steps.append] if record else []), *([on_step] if on_step is not None else [])]
    beams = _PagedBeams(llm, ids)
    try:
        try:
            finished, num_steps = _search(beams, rules.within(llm.max_model_len - len(ids)), listeners)
        finally:
            beams.close()
    except BaseException:
        beams.close()  # again: Ctrl-C can come between the first `finally` and what it does
        raise
    sequences = [_sequence(llm, ids, text, rules) for text in finished[:wanted]]
    return BeamSearchOutput(
        prompt if isinstance(prompt, str) else prompt.get("prompt"), ids, sequences, num_steps, steps
    )


# ---- what is best, and when to stop


@dataclass(frozen=True)
class _Beam:
    """New tokens of a text, the sum of their log-probabilities, and the beam of the step before that it continues."""

    token_ids: tuple[int, ...] = ()
    cum_logprob: float = 0.0
    parent: int = 0


@dataclass(frozen=True)
class _Rules:
    """The options of a search."""

    num_beams: int
    max_tokens: int
    length_penalty: float
    early_stopping: bool | str
    stop_ids: frozenset[int]
    asked_stop_ids: tuple[int, ...]

    @classmethod
    def checked(
        cls, llm: LLM, num_beams: Any, max_tokens: Any, penalty: Any, early: Any, ignore_eos: Any, stop_ids: Any
    ) -> _Rules:
        """The options, once they can be right; those that sampling has too are checked by its own class."""
        num_beams = whole_number("num_beams", num_beams, 1)
        if num_beams > llm.vocab_size:
            raise InvalidInputError(
                f"num_beams is {num_beams}; the vocabulary has {llm.vocab_size} tokens, so a prompt has no more first "
                "tokens to tell beams apart"
            )
        if not (isinstance(early, bool) or (isinstance(early, str) and early == "never")):
            raise InvalidInputError(f'early_stopping is {shown(early)}; use True, False or "never"')
        shared = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop_ids, ignore_eos=ignore_eos)
        real = isinstance(penalty, numbers.Real) and not isinstance(penalty, bool)
        if not real or not abs(penalty) < 700 / math.log(shared.max_tokens + 1):  # e ** 709 is the largest float
            raise InvalidInputError(
                f"length_penalty is {shown(penalty)}; it must be a number, and {shared.max_tokens} ** length_penalty "
                "too. Usual are 0 to 2; 0 compares plain sums"
            )
        stops = frozenset(shared.stop_token_ids) | (frozenset() if ignore_eos else llm._eos)
        return cls(num_beams, shared.max_tokens, float(penalty), early, stops, shared.stop_token_ids)

    def within(self, room: int) -> _Rules:
        """The same with at most `room` new tokens."""
        return _Rules(**{**vars(self), "max_tokens": min(self.max_tokens, room)})

    @property
    def num_candidates(self) -> int:
        """Continuations to look at in a step: enough that num_beams are left when every beam meets every stop token.

        A single beam has no spare one: when it ends, the search has ended, as in greedy decoding.
        """
        return 1 if self.num_beams == 1 else self.num_beams * max(2, 1 + len(self.stop_ids))

    def ends(self, beam: _Beam) -> bool:
        """Whether a text is over."""
        return beam.token_ids[-1] in self.stop_ids or len(beam.token_ids) == self.max_tokens

    def score(self, cum_logprob: float, length: int) -> float:
        """What texts of different lengths are compared by."""
        return cum_logprob / length**self.length_penalty

    def score_of(self, beam: _Beam) -> float:
        """The score of a text that is over."""
        return self.score(beam.cum_logprob, len(beam.token_ids))

    def best_texts(self, finished: list[_Beam], ended: list[_Beam]) -> list[_Beam]:
        """The texts to keep of those that ended before and those that ended now: at most num_beams, best first."""
        return sorted(finished + ended, key=self.score_of, reverse=True)[: self.num_beams]

    def stop(self, running: list[_Beam], finished: list[_Beam]) -> bool:
        """Whether no more steps are wanted: `running` best first, `finished` the best ones so far, best first."""
        if not running:
            return True
        if len(finished) < self.num_beams:
            return False
        if self.early_stopping is True:
            return True
        best, hopeful = running[0], self.early_stopping == "never" and self.length_penalty > 0
        length = self.max_tokens if hopeful else len(best.token_ids)
        return not self.score(best.cum_logprob, length) > self.score_of(finished[-1])


def _search(
    paged: _PagedBeams, rules: _Rules, listeners: Sequence[Callable[[BeamStep], Any]]
) -> tuple[list[_Beam], int]:
    """All of it: the finished texts, best first, and the number of steps."""
    logits = paged.start()  # [1, vocab]
    running, finished = [_Beam()], []
    for number in range(1, rules.max_tokens + 1):
        candidates = _continuations(running, logits, rules.num_candidates)
        # Only the best num_beams may end: a spare candidate that ends was not good enough to be a beam.
        ended = [beam for beam in candidates[: rules.num_beams] if rules.ends(beam)]
        finished = rules.best_texts(finished, ended)
        running = [beam for beam in candidates if not rules.ends(beam)][: rules.num_beams]
        done = rules.stop(running, finished)
        running, copies = ([], []) if done else (running, paged.grow([beam.parent for beam in running]))
        if listeners:
            step = paged.describe(number, running, copies, [_finished(beam, rules) for beam in ended])
            for listen in listeners:
                listen(step)
        if done:
            break
        logits = paged.run([beam.token_ids[-1] for beam in running])  # [num_beams, vocab]
    return finished, number


def _continuations(running: list[_Beam], logits: torch.Tensor, count: int) -> list[_Beam]:
    """The `count` best continuations of all beams, best first.

    Args:
        running: the beams.
        logits: [len(running), vocab], what the model says about each one's next token.
    """
    if logits.isnan().any():
        raise LogitsError("the logits hold NaN, so no beam can be ranked; look for an overflow in the model")
    so_far = torch.tensor([beam.cum_logprob for beam in running], device=logits.device)  # float32, as the sums are
    sums = so_far[:, None] + logits.float().log_softmax(dim=-1)  # [len(running), vocab]
    best = sums.flatten().topk(min(count, sums.numel()))  # beams compete with each other: one ranking of all
    vocab = logits.shape[-1]
    return [
        _Beam((*running[index // vocab].token_ids, index % vocab), cum_logprob, index // vocab)
        for cum_logprob, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _finished(beam: _Beam, rules: _Rules) -> FinishedBeam:
    return FinishedBeam(beam.parent, beam.token_ids[-1], rules.score_of(beam))


def _sequence(llm: LLM, ids: list[int], beam: _Beam, rules: _Rules) -> BeamSearchSequence:
    new_ids, last = list(beam.token_ids), beam.token_ids[-1]
    return BeamSearchSequence(
        tokens=ids + new_ids,
        token_ids=new_ids,
        text=llm.tokenizer.decode(new_ids, skip_special_tokens=True) if llm.tokenizer else "",
        cum_logprob=beam.cum_logprob,
        score=rules.score_of(beam),
        finish_reason="stop" if last in rules.stop_ids else "length",
        stop_reason=last if last in rules.asked_stop_ids else None,
    )


# ---- where the beams lie


class _PagedBeams:
    """The block tables of a search, in the pool of an engine.

    Bookkeeping runs inside the engine's own guard, which starts it empty again when Ctrl-C cuts a change in two. A pool
    that is too small is seen before anything changes, so that the engine's requests stay as they are.
    """

    def __init__(self, llm: LLM, ids: list[int]) -> None:
        llm._whole_again()
        self.llm, self.ids = llm, ids
        self.manager, self.cache = llm.manager, llm.runner.cache
        self.seq_ids: list[int] = []

    def start(self) -> torch.Tensor:
        """Store the prompt, and return the logits [1, vocab] of what comes next."""
        keep_free = self.llm.scheduler.unfinished > 0  # the watermark is for other requests to grow into
        if self.manager.can_allocate(self.ids, watermark=keep_free) is not AllocStatus.OK:
            raise OutOfBlocksError(f"the prompt's {len(self.ids)} tokens find no room: {self._pool()}")
        with self.llm._changing():
            root = next(self.llm._numbers)
            computed = self.manager.allocate(root, self.ids, watermark=keep_free)  # what the prefix cache has
            self.seq_ids = [root]
        chunk = self.llm.scheduler.max_num_batched_tokens
        while computed < len(self.ids):
            part = self.ids[computed : computed + chunk]
            logits = self._pass([part], computed)
            computed += len(part)
            self.manager.mark_computed(root, computed)  # from here on others may find the prompt's full blocks
        return logits

    def grow(self, parents: list[int]) -> list[tuple[int, int]]:
        """Go on to the next step's beams, with a slot for the token that each adds; returns the copies made."""
        self._still_there()
        with self.llm._changing():
            self.seq_ids = next_beams(self.manager, self.seq_ids, parents, self.llm._numbers)
        needed = self.manager.new_blocks_needed_together(dict.fromkeys(self.seq_ids, 1))
        if needed > self.manager.num_free_blocks:
            length = self.manager.num_tokens(self.seq_ids[0]) + 1
            raise OutOfBlocksError(f"{len(parents)} beams of {length} tokens need {needed} more blocks: {self._pool()}")
        with self.llm._changing():
            copies = [pair for seq_id in self.seq_ids for pair in self.manager.append_slots(seq_id)]
        self.cache.copy_blocks(copies)
        return copies

    def run(self, token_ids: list[int]) -> torch.Tensor:
        """One pass over the newest token of every beam, all packed; returns logits [num_beams, vocab]."""
        self._still_there()  # a listener may have used the engine
        return self._pass([[token] for token in token_ids], self.manager.num_tokens(self.seq_ids[0]) - 1)

    def _pass(self, new_ids: list[list[int]], computed: int) -> torch.Tensor:
        batch = Batch()
        for seq_id, new in zip(self.seq_ids, new_ids, strict=True):
            batch.add(new, computed, self.manager.block_table(seq_id), self.cache.block_size)
        return self.llm.runner.run(batch)

    def describe(
        self, number: int, running: list[_Beam], copies: list[tuple[int, int]], finished: list[FinishedBeam]
    ) -> BeamStep:
        """The step as a reader sees it."""
        tables = [self.manager.block_table(seq_id) for seq_id in self.seq_ids] if running else []
        return BeamStep(
            number,
            [beam.parent for beam in running],
            [beam.token_ids[-1] for beam in running],
            [beam.cum_logprob for beam in running],
            tables,
            {block: self.manager.pool.blocks[block].ref_count for table in tables for block in table},
            copies,
            finished,
        )

    def close(self) -> None:
        """Give every block back; nothing to do when the engine has started empty again. Calling twice does no harm."""
        self.llm._whole_again()
        if self.seq_ids and self.llm.manager is self.manager:
            with self.llm._changing():
                for seq_id in self.seq_ids:
                    self.manager.free(seq_id)
                self.seq_ids = []

    def _still_there(self) -> None:
        if self.llm.manager is not self.manager:
            raise InterruptedSearchError("another call was interrupted while this search ran; start the search again")

    def _pool(self) -> str:
        free, total = self.manager.num_free_blocks, self.manager.num_blocks
        others = self.llm.scheduler.unfinished
        held = f", and {others} unfinished requests hold others" if others else ""
        return (
            f"{free} of {total} blocks are free{held}. The search gives back all it had. Use fewer beams, a shorter "
            "prompt or fewer max_tokens, or make a larger pool (num_blocks)"
        )
