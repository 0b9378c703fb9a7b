"""Chapter 10. The front door: `LLM.generate` runs many requests at once in one budget of KV blocks.

    prompts -> Sequence -> Scheduler.schedule() -> Batch -> ModelRunner.run() -> logits -> sample -> Sequence -> text
                  ^______________________________________________________________________________|

Names and results are vLLM's wherever both have the thing. Each request draws from its own random generator, so what it
writes does not depend on who else is running. Left out: an HTTP server, and several GPUs.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import sys
import traceback
from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch

from minipaged.block_manager import BlockManager, OutOfBlocksError, blocks_needed
from minipaged.decoding import TextStream
from minipaged.errors import InvalidInputError, MinipagedError, an_instance, listed, shown, whole_number
from minipaged.kv_size import KVCacheSpec
from minipaged.model_runner import Batch, ModelRunner, refuse_by_config
from minipaged.models import load_model
from minipaged.paged_cache import PagedKVCache
from minipaged.sampling import SamplingParams, _checked, eos_token_ids, make_generator, sample
from minipaged.scheduler import Scheduler, Sequence, SequenceStatus, Step

Prompt = str | dict[str, Any]


class InterruptedStreamError(MinipagedError):
    """Another call was cut off half-way (Ctrl-C, say) while this stream ran, and the engine has started empty again."""


class UnfinishedStreamError(MinipagedError):
    """A stream's request was refused or ran out of blocks; the pieces before are all that was written."""


class EngineBusyError(MinipagedError):
    """The engine was called from inside one of its own steps: by a draft, say, or by another thread."""


@dataclass(frozen=True)
class CompletionOutput:
    """One text that was written for a request.

    Attributes:
        index: which of the request's n samples.
        text, token_ids: what was written; the token that stopped it is in `token_ids`, special tokens not in `text`.
        cumulative_logprob: sum of the chosen tokens' log-probabilities, None unless `logprobs` was asked for.
        logprobs: for each token {token id: log-probability} of the best ones and the chosen one, or None.
        finish_reason: "stop", "length", or why it could not be finished: "refused", "out_of_blocks", "cancelled".
        stop_reason: the stop token id that ended it, or a sentence about why it could not be finished.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class RequestOutput:
    """What came of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0  # of the prompt: found in the prefix cache and not computed (chapter 11)


@dataclass(frozen=True)
class StepStats:
    """One step of the engine: sequences in each state after scheduling, blocks in use, tokens computed.

    `prefix_hit_tokens` are tokens of newcomers that the prefix cache had; `recovered_tokens` those that sequences which
    had given way found again, which nobody would count as a hit.
    """

    num_running: int
    num_waiting: int
    num_swapped: int
    blocks_used: int
    num_tokens: int
    num_preempted: int
    prefix_hit_tokens: int = 0
    recovered_tokens: int = 0


@dataclass(eq=False)
class _Sample:
    """One sequence and what its request wants of it."""

    seq: Sequence
    params: SamplingParams
    generator: torch.Generator | None
    stop_ids: frozenset[int]
    logprobs: list[dict[int, float]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    stop_reason: int | str | None = None

    @property
    def new_ids(self) -> list[int]:
        return self.seq.token_ids[self.seq.prompt_len :]


class _Stream(Iterator[str]):
    """The pieces of one text, as they are written. Asked for from inside a step, it says so and can go on later."""

    def __init__(self, llm: LLM, pieces: Generator[str]) -> None:
        self._llm, self._pieces = llm, pieces

    def __next__(self) -> str:
        self._llm._whole_again()  # out here, because an error in the generator would end it
        return next(self._pieces)

    def close(self) -> None:
        """End it, and give its blocks back; so does dropping it."""
        self._pieces.close()


class LLM:
    """A language model that serves many requests from one pool of KV blocks.

    Args:
        model: None for the course's; a transformers id; a folder; or a loaded model (prompts are then token ids).
        dtype, device: see `load_model`; not used for a loaded model.
        block_size: slots in a block.
        num_blocks: blocks of the pool; None for what `max_num_seqs` texts of the model's full length need, but at most
            25% of the free memory, or 90% of a GPU's.
        max_num_seqs: sequences that run at the same time; each of a request's n samples is one.
        max_num_batched_tokens: tokens that one step computes.
        enable_prefix_caching: find the K and V of a prompt's first tokens in blocks of earlier requests that began with
            the same tokens (chapter 11). No result depends on it.
        preemption: "recompute" or "swap", see `Scheduler`.
        num_host_blocks: blocks in host memory for swapping; None for as many as the pool has, 0 without swapping.
        batching: "continuous", or "static": a batch is closed until its longest request has ended.
        reserve: "on_demand", or "max_len": every request gets room for the longest one at admission, and nothing is
            shared, as in an engine without paging.
        attention_backend: see `paged_attention`.
        seed: where requests without a seed of their own start.

    Raises:
        InvalidInputError: an option that cannot be right.
        UnsupportedModelError: see `ModelRunner`.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        dtype: str = "auto",
        device: str = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        preemption: Literal["recompute", "swap"] = "recompute",
        num_host_blocks: int | None = None,
        batching: Literal["continuous", "static"] = "continuous",
        reserve: Literal["on_demand", "max_len"] = "on_demand",
        attention_backend: str = "auto",
        seed: int = 0,
    ) -> None:
        if not isinstance(reserve, str) or reserve not in ("on_demand", "max_len"):
            raise InvalidInputError(f'reserve is {shown(reserve)}; use "on_demand" or "max_len"')
        options = {"preemption": preemption, "batching": batching}
        one_block = BlockManager(1, enable_prefix_caching=enable_prefix_caching)
        Scheduler(one_block, max_num_seqs, max_num_batched_tokens, **options)  # says what is wrong with them
        block_size = whole_number("block_size", block_size, 1)
        num_blocks = None if num_blocks is None else whole_number("num_blocks", num_blocks, 1)
        num_host_blocks = None if num_host_blocks is None else whole_number("num_host_blocks", num_host_blocks)
        self.seed = whole_number("seed", seed)
        if model is None or isinstance(model, str | Path):
            self.model, self.tokenizer = load_model(model, device=device, dtype=dtype)
        else:
            self.model, self.tokenizer = model, None
        refuse_by_config(self.model)
        config = self.model.config.get_text_config()
        self.vocab_size = config.vocab_size
        self.max_model_len = getattr(config, "max_position_embeddings", None) or 2**31
        if num_blocks is None:
            num_blocks = _blocks_that_fit(self.model, block_size, max_num_seqs, self.max_model_len)
        self.runner = ModelRunner(self.model, num_blocks, block_size, backend=attention_backend, prepack=True)
        if num_host_blocks is None:
            num_host_blocks = num_blocks if preemption == "swap" else 0
        self._host = self._host_cache(num_host_blocks)
        self._make_scheduler = lambda manager: Scheduler(manager, max_num_seqs, max_num_batched_tokens, **options)
        self._num_host_blocks, self._block_size, self.reserve = num_host_blocks, block_size, reserve
        self.enable_prefix_caching = enable_prefix_caching and reserve == "on_demand"
        self.stats: list[StepStats] = []
        self._eos = eos_token_ids(self.model, self.tokenizer)
        self._samples: dict[int, _Sample] = {}
        self._changer: FrameType | None = None  # the function that is inside `_changing`, or was when Ctrl-C came
        self._numbers = itertools.count()
        self._start_empty()

    def _start_empty(self) -> None:
        """No sequence, every block free and nothing to find in any, whatever state the bookkeeping was in."""
        for one in self._samples.values():
            if one.seq.status is not SequenceStatus.FINISHED:
                one.seq.status, one.seq.finish_reason = SequenceStatus.FINISHED, "cancelled"
        self._samples, self._dropped = {}, []
        self.manager = BlockManager(
            self.runner.cache.num_blocks,
            self._block_size,
            num_host_blocks=self._num_host_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
        )
        self.scheduler = self._make_scheduler(self.manager)
        self._changer = None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """What happens inside must happen as a whole. Ctrl-C can come between any two lines, a queue changed and its
        blocks not yet: then nobody's numbers can be trusted, and the engine starts empty again.

        Raises:
            EngineBusyError: somebody is inside already, who can go on as if nothing had been.
        """
        self._whole_again()
        me = self._changer = sys._getframe(2)  # whoever says `with`: 0 is this function, 1 is contextlib's
        try:
            yield
            self._finish_dropped()
        except BaseException:
            if self._changer is me:  # not so when the engine has started empty since then
                self._start_empty()
            raise
        self._changer = None

    def _whole_again(self) -> None:
        """Start empty if a Ctrl-C has left a change half-way; refuse to go on inside a change that is under way."""
        if self._inside_a_step():
            raise EngineBusyError(
                "the engine is in the middle of a step, and serves no other call before its end: call it from outside, "
                "or use a second LLM for what happens inside"
            )
        if self._changer is not None:
            self._start_empty()

    def _inside_a_step(self) -> bool:
        """Whether somebody is inside `_changing`: one whose function has left every stack was cut off by Ctrl-C."""
        if self._changer is None:
            return False
        stacks = [traceback.walk_stack(newest) for newest in sys._current_frames().values()]  # of each thread
        return any(frame is self._changer for stack in stacks for frame, _ in stack)

    def _host_cache(self, num_blocks: int) -> PagedKVCache | None:
        cache = self.runner.cache
        return PagedKVCache(cache.shapes, num_blocks, cache.block_size, cache.dtype, "cpu") if num_blocks else None

    # -- what a user calls -----------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Write a continuation for every prompt; results come in the order of the prompts.

        Args:
            prompts: one or a list of: a text, or {"prompt_token_ids": [...]}.
            sampling_params: for all, or one each; None for the defaults.
            use_tqdm: show progress and tokens per second.

        Raises:
            InvalidInputError: an input that cannot be right, before anything runs; it names the prompt.
            EngineBusyError: called from inside a step of this engine.
            LogitsError: the model gave NaN; the engine starts empty again.
            OutOfBlocksError: called from a beam search's `on_step`, and the beams hold the blocks that it needs.
        """
        an_instance("use_tqdm", use_tqdm, int, "True or False")
        prompts = [prompts] if isinstance(prompts, str | Mapping) else _listed("prompts", prompts)
        ids = [self._prompt_ids(prompt, i) for i, prompt in enumerate(prompts)]
        params = self._params(sampling_params, len(prompts))
        self._whole_again()
        mine: list[_Sample] = []
        try:
            requests = self._queue(ids, params, mine)
            self._run(mine, use_tqdm)
        finally:  # Ctrl-C: whatever is unfinished gives its blocks back
            self._forget(mine)
        texts = [prompt if isinstance(prompt, str) else prompt.get("prompt") for prompt in prompts]
        return [self._output(str(i), text, one) for i, (text, one) in enumerate(zip(texts, requests, strict=True))]

    def chat(
        self,
        messages: SequenceOf[Any],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations: a list of {"role": ..., "content": ...}, or a list of such lists."""
        if self.tokenizer is None or not self.tokenizer.chat_template:
            raise InvalidInputError("this model came without a chat template: use generate with your own format")
        messages = _listed("messages", messages)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        texts = [self._templated(number, each) for number, each in enumerate(conversations)]
        prompts = [{"prompt_token_ids": self._encode(text, special=False), "prompt": text} for text in texts]
        return self.generate(prompts, sampling_params, use_tqdm)

    def _templated(self, number: int, conversation: Any) -> str:
        turns = _listed(f"conversation {number}", conversation)
        for turn in turns:
            if not (isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and "content" in turn):
                raise InvalidInputError(
                    f'conversation {number} holds {shown(turn)}; a message is {{"role": "user", "content": "..."}}'
                )
        try:
            return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs of the model's makers, and refuse in their own ways
            raise InvalidInputError(f"conversation {number} does not fit the model's chat template: {error}") from error

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Write one continuation and hand out its text piece by piece; the pieces join to the whole text.

        Raises:
            InvalidInputError: at the call, not at the first piece.
            UnfinishedStreamError: after the last piece, when the pool is too small for the text or its prompt.
            InterruptedStreamError: another call was cut off, and took this stream's blocks with it.
            EngineBusyError, OutOfBlocksError: see `generate`; after an EngineBusyError it can go on.
        """
        if self.tokenizer is None:
            raise InvalidInputError("streaming makes text, and this model came without a tokenizer: use generate")
        (params,) = self._params(sampling_params, 1)
        if params.n != 1:
            raise InvalidInputError(f"n is {params.n}; a stream shows one text")
        ids = [self._prompt_ids(prompt, 0)]

        def pieces() -> Iterator[str]:
            mine: list[_Sample] = []
            try:
                self._queue(ids, [params], mine)
                yield from self._pieces(mine[0])
            finally:
                self._forget(mine)

        return _Stream(self, pieces())

    def reset_prefix_cache(self) -> bool:
        """Find no earlier request's blocks again: what comes next is computed anew.

        Returns:
            True. Running streams keep their blocks and go on, so nothing stands in the way.
        """
        self._whole_again()
        self.manager.reset_prefix_cache()
        return True

    def _pieces(self, one: _Sample) -> Iterator[str]:
        text, shown = TextStream(self.tokenizer), one.seq.prompt_len
        while True:  # other calls may have moved this sequence on, even to its end: first hand out what is there
            for token in one.seq.token_ids[shown:]:
                shown += 1
                if piece := text.push(token):
                    yield piece
            if shown < len(one.seq.token_ids):
                continue
            if one.seq.status is SequenceStatus.FINISHED:
                break
            self._step()
        if one.seq.finish_reason == "cancelled":
            raise InterruptedStreamError("another call was interrupted while this stream ran; start the stream again")
        if rest := text.finish():
            yield rest
        if one.seq.note is not None:
            raise UnfinishedStreamError(f"the text ends early ({one.seq.finish_reason}): {one.seq.note}")

    # -- what comes in ---------------------------------------------------------------------------------------------

    def _encode(self, text: str, special: bool = True) -> list[int]:
        if self.tokenizer is None:
            raise InvalidInputError(
                'this model came without a tokenizer: pass token ids, {"prompt_token_ids": [...]}, or give LLM a folder'
            )
        return self.tokenizer(text, add_special_tokens=special).input_ids

    def _prompt_ids(self, prompt: Any, number: int) -> list[int]:
        """Token ids of prompt `number`, once they can be right."""
        if isinstance(prompt, Mapping) and isinstance(prompt.get("prompt"), str) and "prompt_token_ids" not in prompt:
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            ids = self._encode(prompt)
        elif isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
            ids = self._token_ids(number, _listed(f"prompt {number}", prompt["prompt_token_ids"]))
        else:
            raise InvalidInputError(
                f'prompt {number} is {type(prompt).__name__}; pass a text or {{"prompt_token_ids": [...]}}'
            )
        if not ids:
            raise InvalidInputError(f"prompt {number} is empty; a text needs at least 1 token to continue from")
        if len(ids) >= self.max_model_len:
            raise InvalidInputError(
                f"prompt {number} has {len(ids)} tokens; the model takes {self.max_model_len} in all, so a prompt may "
                f"have {self.max_model_len - 1}: shorten it"
            )
        return ids

    def _token_ids(self, number: int, ids: list[Any]) -> list[int]:
        """Plain numbers, numpy's and torch's too, once all are in the vocabulary."""
        plain = []
        for token in ids:
            try:
                plain.append(-1 if isinstance(token, bool) else operator.index(token))
            except (TypeError, RuntimeError):  # torch raises both
                plain.append(-1)
            if not 0 <= plain[-1] < self.vocab_size:
                raise InvalidInputError(
                    f"prompt {number} holds {shown(token)}; token ids are whole numbers from 0 to {self.vocab_size - 1}"
                )
        return plain

    def _params(self, given: Any, count: int) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or SamplingParams()] * count
        params = _listed("sampling_params", given)
        if len(params) != count:
            raise InvalidInputError(f"{count} prompts and {len(params)} sampling_params; give one for all, or one each")
        for number, each in enumerate(params):
            if not isinstance(each, SamplingParams):
                raise InvalidInputError(f"sampling_params {number} is {type(each).__name__}, not SamplingParams")
        return params

    def _set_reserve(self, ids: list[list[int]], params: list[SamplingParams]) -> None:
        longest = max((self._max_len(i, p) for i, p in zip(ids, params, strict=True)), default=0)
        self.scheduler.reserve_len = longest if self.reserve == "max_len" else None

    def _max_len(self, ids: list[int], params: SamplingParams) -> int:
        return min(len(ids) + params.max_tokens, self.max_model_len)

    def _queue(self, ids: list[list[int]], params: list[SamplingParams], mine: list[_Sample]) -> list[list[_Sample]]:
        """Queue requests as a whole; their samples are `mine` from then on. Returns those of each request."""
        with self._changing():
            self._set_reserve(ids, params)
            requests = [self._add(tokens, each) for tokens, each in zip(ids, params, strict=True)]
            mine += itertools.chain.from_iterable(requests)
        self.stats.clear()
        return requests

    def _add(self, ids: list[int], params: SamplingParams) -> list[_Sample]:
        """Queue a request: one sequence for each of its n samples, which share the prompt's blocks if they may."""
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        added = []
        for index in range(params.n):
            seq = Sequence(next(self._numbers), list(ids), len(ids), self._max_len(ids, params))
            generator = None if params.greedy else self._generator(params, seq.seq_id, index)
            added.append(_Sample(seq, params, generator, stops))
            self._samples[seq.seq_id] = added[-1]
        group = 1 if self.reserve == "max_len" else self.scheduler.max_num_seqs
        for start in range(0, len(added), group):
            self.scheduler.add(*(one.seq for one in added[start : start + group]))
        return added

    def _generator(self, params: SamplingParams, seq_id: int, index: int) -> torch.Generator:
        if params.seed is not None:
            return make_generator(params, index=index)
        generator = torch.Generator()
        generator.manual_seed((self.seed * 1_000_003 + seq_id) % 2**63)  # the same engine and calls give the same texts
        return generator

    # -- the loop --------------------------------------------------------------------------------------------------

    def _run(self, mine: list[_Sample], use_tqdm: bool) -> None:
        from tqdm.auto import tqdm

        left = {one.seq.seq_id for one in mine if one.seq.status is not SequenceStatus.FINISHED}
        written = 0
        with tqdm(total=len(mine), disable=not use_tqdm, unit="text", desc="generating") as bar:
            while left and self.scheduler.unfinished:  # 0 also when the engine has started empty since
                chosen, finished = self._step()
                if use_tqdm:
                    written += chosen
                    bar.set_postfix_str(f"{written / (bar.format_dict['elapsed'] or 1e-9):.1f} tokens/s", refresh=False)
                if finished:
                    bar.update(len(left) - len(left := left.difference(finished)))

    def _step(self) -> tuple[int, list[int]]:
        """One turn for everybody: schedule, move blocks, run the model, choose tokens.

        Returns:
            How many tokens were written, and the numbers of the sequences that ended.

        Raises:
            OutOfBlocksError: everybody waits for blocks that nobody in the queue will give back.
        """
        with self._changing():
            step = self.scheduler.schedule()
            if self._host is not None:
                self._host.copy_from(self.runner.cache, step.swap_out)
                self.runner.cache.copy_from(self._host, step.swap_in)
            self.runner.cache.copy_blocks(step.copies)
            self.stats.append(self._count(step))
            ready = self._compute(step)
            ended = [seq.seq_id for seq in self.scheduler.ended]
            self.scheduler.ended.clear()
            for seq_id in ended:
                self._samples.pop(seq_id, None)
        if not (ready or ended or step.num_tokens or step.num_preempted):
            self._refuse_to_wait_for_ever()
        return len(ready), ended

    def _refuse_to_wait_for_ever(self) -> None:
        """A step in which nothing happened: the next one would be the same."""
        if self.scheduler.unfinished:
            others = [seq_id for seq_id in self.manager.seq_ids if seq_id not in self._samples]
            raise OutOfBlocksError(
                f"{self.scheduler.unfinished} requests wait for blocks and none runs: {self.manager.num_used_blocks} "
                f"of {self.manager.num_blocks} blocks are held by {len(others)} sequences that are not in the queue "
                "(the beams of a search that called from on_step, say). Call when they have ended, or make a larger "
                "pool (num_blocks)"
            )

    def _count(self, step: Step) -> StepStats:
        queues = self.scheduler
        return StepStats(
            len(queues.running),
            len(queues.waiting),
            len(queues.swapped),
            self.manager.num_used_blocks,
            step.num_tokens,
            step.num_preempted,
            step.prefix_hit_tokens,
            step.recovered_tokens,
        )

    def _compute(self, step: Step) -> list[_Sample]:
        """Run the model on a step's tokens, and give a next token to every sequence whose last one is computed."""
        if not step.parts:
            return []
        batch = Batch()
        for seq, count in step.parts:
            done = seq.num_computed_tokens
            batch.add(seq.token_ids[done : done + count], done, self.manager.block_table(seq.seq_id), self._block_size)
        # the rows of those whose last token is in: their next one can be chosen
        wanted = [count == seq.num_uncomputed_tokens for seq, count in step.parts]
        logits = self.runner.run(batch, list(itertools.compress(batch.last_rows, wanted)))  # [sum(wanted), vocab]
        ready, rows, row = [], [], 0
        for (seq, count), last in zip(step.parts, wanted, strict=True):
            chosen_now = self.scheduler.computed(seq, count)  # several samples choose from the row of their prompt
            ready += [self._samples[one.seq_id] for one in chosen_now]
            rows += [row] * len(chosen_now)
            row += last
        if rows != list(range(len(logits))):
            logits = logits[rows]  # [len(ready), vocab]
        for one, token, logits_row in zip(ready, self._choose(logits, ready), logits, strict=True):
            self._append(one, token, logits_row)
        return ready

    def _choose(self, logits: torch.Tensor, ready: list[_Sample]) -> list[int]:
        """The next token of each row: all greedy ones in one call, each other one with its own generator."""
        if not ready:
            return []
        best = logits.argmax(dim=-1, keepdim=True)  # [len(ready), 1]; where a row holds NaN, the place of one
        _checked(logits.gather(-1, best))  # the best of each row is enough to see whether it can be used
        tokens = best.flatten().tolist()
        for i, one in enumerate(ready):
            if not one.params.greedy:
                tokens[i] = int(sample(logits[i], one.params, one.generator))
        return tokens

    def _append(self, one: _Sample, token: int, logits: torch.Tensor) -> None:
        one.seq.token_ids.append(token)
        if one.params.logprobs is not None:
            entry = best_logprobs(logits, token, one.params.logprobs)
            one.logprobs.append(entry)
            one.cumulative_logprob += entry[token]
        if token in one.stop_ids:
            one.stop_reason = token if token in one.params.stop_token_ids else None
            self.scheduler.finish(one.seq, "stop")
        elif len(one.seq.token_ids) >= one.seq.max_len:
            self.scheduler.finish(one.seq, "length")

    # -- what goes out ---------------------------------------------------------------------------------------------

    def _forget(self, mine: list[_Sample]) -> None:
        """Nobody wants these any more. Inside a step, where the garbage collector may drop a stream, it comes last."""
        self._dropped.extend(mine)
        if not self._inside_a_step():
            with self._changing():
                pass

    def _finish_dropped(self) -> None:
        while self._dropped:  # again: others may be dropped meanwhile
            dropped, self._dropped = self._dropped, []
            for one in dropped:
                if self._samples.pop(one.seq.seq_id, None):
                    self.scheduler.finish(one.seq, "cancelled")
            self.scheduler.ended.clear()

    def _output(self, number: str, prompt: str | None, request: list[_Sample]) -> RequestOutput:
        first = request[0].seq
        outputs = [self._completion(index, one) for index, one in enumerate(request)]
        cached = first.num_cached_tokens
        return RequestOutput(number, prompt, first.token_ids[: first.prompt_len], outputs, True, cached)

    def _completion(self, index: int, one: _Sample) -> CompletionOutput:
        text = self.tokenizer.decode(one.new_ids, skip_special_tokens=True) if self.tokenizer else ""
        asked = one.params.logprobs is not None
        return CompletionOutput(
            index,
            text,
            one.new_ids,
            one.cumulative_logprob if asked else None,
            one.logprobs if asked else None,
            one.seq.finish_reason,
            one.seq.note or one.stop_reason,
        )


def best_logprobs(logits: torch.Tensor, token: int, count: int) -> dict[int, float]:
    """Log-probabilities of the `count` best tokens and of the chosen one, by the model itself: before any cut.

    Args:
        logits: [vocab].
    """
    all_of_them = logits.float().log_softmax(-1)
    best = all_of_them.topk(min(count, len(all_of_them)))
    entry = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    entry.setdefault(token, all_of_them[token].item())
    return entry


def _listed(name: str, values: Any) -> list[Any]:
    """A list of what came in, an array's or a tensor's numbers, unless that is one thing where several belong."""
    if hasattr(values, "tolist"):
        try:
            values = values.tolist()
        except Exception as error:  # a tensor without values, or with too few of them stored
            raise InvalidInputError(f"{name} is {shown(values)}, which has no list of values: {error}") from error
    return listed(name, values, "a list")


def _blocks_that_fit(model: Any, block_size: int, max_num_seqs: int, max_model_len: int) -> int:
    """Blocks for `max_num_seqs` texts of full length, within a share of the memory that is free now."""
    wanted = max_num_seqs * blocks_needed(max_model_len, block_size)
    spec = KVCacheSpec.from_config(model.config)
    dtype = str(model.dtype).removeprefix("torch.")
    each = spec.allocated_bytes([block_size], block_size, dtype=dtype, mla="expanded", hybrid="full")
    share = int(_memory_share(model.device))
    fits = share // each
    if fits < 1:
        raise InvalidInputError(
            f"one block of {each:,} bytes does not fit the {share:,} bytes that the pool may take of the free memory: "
            "use a smaller block_size, or pass num_blocks"
        )
    return max(1, min(wanted, fits))


def _memory_share(device: torch.device) -> float:
    """Bytes that the pool may take: 90% of what is free on a GPU, 25% of the free memory of the host."""
    if device.type == "cuda":
        return 0.9 * torch.cuda.mem_get_info(device)[0]
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows and macOS say it in other ways
        free = 4 * 2**30
    return 0.25 * free
