"""Whatever is passed, a right answer or one of minipaged's own errors comes out: no crash, no endless loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from minipaged import block_manager, doctor, fragmentation, kv_size, models, sharing
from minipaged.block_manager import BlockManager, BlockPool, Paged, PrefixIndex, hash_block
from minipaged.errors import InvalidInputError, MinipagedError, listed, real_number, shown, whole_number
from minipaged.fragmentation import BuddyPool, FirstFit, FirstFitPool, MaxLength, PowerOfTwo, simulate
from minipaged.kv_configs import LayerCache
from minipaged.kv_size import KVCacheSpec, fit
from minipaged.puzzles import Puzzle
from minipaged.puzzles import run as run_puzzle
from minipaged.scheduler import Scheduler, rehearse
from minipaged.sharing import Saving, saved_by_beams

# ---- whatever comes, for every argument of every function that keeps the books


def hostile():
    """Values that are wrong nearly everywhere; made anew each time, as generators are used up."""
    return [
        None, math.nan, math.inf, -1, 0, True, False, 2.5, np.int64(3), np.int8(5), np.float32(0.5), 1j,
        10**30, -(10**30), 10**400, 10**5000, -(10**5000),
        "", "abc", "a\0b", "\ud800", b"x", [], (), {}, {1: 2}, {1, 2}, range(3), object(), lambda *a, **k: None,
        [None], [math.nan], ["a"], [-1], [True], [[1]], [2.5], (1,), [10**30], (i for i in [1, 2]), iter(()),
        torch.tensor(3), torch.tensor([1.0, math.nan]), torch.tensor([1, 2]), torch.zeros(2, 3), torch.zeros(0),
        torch.zeros(2, 3, device="meta"), torch.tensor([True, False]), torch.zeros(2, dtype=torch.complex64),
        np.array(["a"]), np.array([1.5]), np.array([None]), np.zeros(0),
    ]  # fmt: skip


def managed(**options):
    manager = BlockManager(16, 4, watermark=0, num_host_blocks=8, enable_prefix_caching=True, **options)
    manager.allocate(0, list(range(10)))
    manager.mark_computed(0, 8)
    return manager


def away():
    manager = managed()
    manager.swap_out([0])
    return manager


def taken(pool):
    pool.take(4)
    return pool


def admitted(allocator):
    allocator.reset(64)
    allocator.admit(0, 3, 4)
    return allocator


def spec():
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    return KVCacheSpec.from_config(config)


def load():
    return fit(spec(), 1000, 1e6, 10)


ALLOCATOR = {
    "reset": {"num_slots": 64}, "why_never": {"prompt_len": 3, "output_len": 4}, "capacity": {"request": 0},
    "admit": {"request": 1, "prompt_len": 3, "output_len": 4}, "grow": {"request": 0, "num_tokens": 5},
    "free": {"request": 0}, "spans": {"request": 0},
}  # fmt: skip
PAIRS = [(5, 4), (3, 9)]
ANSWERS = {"dtype": "float16", "tensor_parallel": 1, "scale_group": None}

# name -> (the function, made anew; arguments that are right, made anew)
CALLS = {
    "blocks_needed": (lambda: block_manager.blocks_needed, lambda: {"num_tokens": 20, "block_size": 16}),
    "physical_slot": (
        lambda: block_manager.physical_slot,
        lambda: {"block_table": [3, 1], "position": 2, "block_size": 16},
    ),
    "shuffled": (lambda: block_manager.shuffled, lambda: {"num_blocks": 5, "seed": 0}),
    "hash_block": (lambda: hash_block, lambda: {"parent_hash": 0, "token_ids": (1, 2)}),
    "BlockPool": (lambda: BlockPool, lambda: {"num_blocks": 4, "block_order": [1]}),
    "BlockPool.take": (lambda: BlockPool(8).take, lambda: {"count": 2}),
    "BlockPool.share": (lambda: taken(BlockPool(8)).share, lambda: {"block_ids": [1]}),
    "BlockPool.give_back": (lambda: taken(BlockPool(8)).give_back, lambda: {"block_ids": [1]}),
    "BlockManager": (
        lambda: BlockManager,
        lambda: {"num_blocks": 8, "block_size": 4, "watermark": 0.1, "block_order": None, "num_host_blocks": 2,
                 "enable_prefix_caching": True, "hash_function": hash_block},
    ),
    "allocate": (lambda: managed().allocate, lambda: {"seq_id": 5, "token_ids": [1, 2, 3], "watermark": True}),
    "can_allocate": (lambda: managed().can_allocate, lambda: {"token_ids": [1, 2], "watermark": True, "extra": 0}),
    "append_slots": (lambda: managed().append_slots, lambda: {"seq_id": 0, "n": 1}),
    "can_append": (lambda: managed().can_append, lambda: {"seq_id": 0, "n": 1}),
    "truncate": (lambda: managed().truncate, lambda: {"seq_id": 0, "num_tokens": 4}),
    "free": (lambda: managed().free, lambda: {"seq_id": 0}),
    "fork": (lambda: managed().fork, lambda: {"parent_id": 0, "child_id": 1}),
    "block_table": (lambda: managed().block_table, lambda: {"seq_id": 0}),
    "slot_mapping": (lambda: managed().slot_mapping, lambda: {"seq_id": 0, "start": 0, "stop": 4}),
    "swap_out": (lambda: managed().swap_out, lambda: {"seq_ids": [0]}),
    "swap_in": (lambda: away().swap_in, lambda: {"seq_ids": [0]}),
    "blocks_to_swap_in": (lambda: away().blocks_to_swap_in, lambda: {"lengths": {0: 12}}),
    "needed_together": (lambda: managed().new_blocks_needed_together, lambda: {"more": {0: 1}}),
    "mark_computed": (
        lambda: managed().mark_computed,
        lambda: {"seq_id": 0, "num_tokens": 4, "token_ids": list(range(10))},
    ),
    "PrefixIndex": (lambda: PrefixIndex, lambda: {"hash_function": hash_block}),
    "Paged": (lambda: Paged, lambda: {"block_size": 16, "watermark": 0.01}),
    **{
        f"{make.__name__}.{call}": (
            lambda make=make, call=call: getattr(admitted(make(16)), call),
            lambda right=right: dict(right),
        )
        for make in (Paged, FirstFit, MaxLength, PowerOfTwo)
        for call, right in ALLOCATOR.items()
    },
    "FirstFit": (lambda: FirstFit, lambda: {"max_len": 16}),
    "FirstFitPool": (lambda: FirstFitPool, lambda: {"num_slots": 64}),
    "FirstFitPool.take": (lambda: FirstFitPool(64).take, lambda: {"length": 4}),
    "FirstFitPool.give": (lambda: taken(FirstFitPool(64)).give, lambda: {"start": 0, "length": 4}),
    "BuddyPool": (lambda: BuddyPool, lambda: {"num_slots": 64}),
    "BuddyPool.take": (lambda: BuddyPool(64).take, lambda: {"length": 4}),
    "BuddyPool.give": (lambda: taken(BuddyPool(64)).give, lambda: {"start": 0, "length": 4}),
    "next_power_of_two": (lambda: fragmentation.next_power_of_two, lambda: {"n": 3}),
    "simulate": (
        lambda: simulate,
        lambda: {"requests": PAIRS, "allocator": MaxLength(16), "num_slots": 64, "arrivals": [0, 1], "steps": 30,
                 "warmup": 2, "seed": 0, "record": False},
    ),
    "lognormal_lengths": (
        lambda: fragmentation.lognormal_lengths,
        lambda: {"n": 3, "prompt_mean": 20, "output_mean": 30, "prompt_cv": 1.0, "output_cv": 0.8, "max_len": 64,
                 "seed": 0},
    ),
    "poisson_arrivals": (lambda: fragmentation.poisson_arrivals, lambda: {"n": 3, "rate": 0.5, "seed": 0}),
    "check_arrivals": (lambda: fragmentation.check_arrivals, lambda: {"arrivals": [0, 1], "n": 2}),
    "saved_by_sampling": (
        lambda: sharing.saved_by_sampling,
        lambda: {"requests": PAIRS, "n": 2, "block_size": 4, "same_length": False, "seed": 0},
    ),
    "saved_by_beams": (
        lambda: saved_by_beams,
        lambda: {"requests": PAIRS, "k": 2, "block_size": 4, "parents": lambda k: [0] * k, "seed": 0},
    ),
    "token_estimate": (lambda: sharing.token_estimate, lambda: {"requests": PAIRS, "n": 2}),
    "Saving": (lambda: Saving, lambda: {"blocks_used": 1, "blocks_alone": 2}),
    "of_tables": (lambda: Saving.of_tables, lambda: {"steps": [[[1, 2], [1, 3]]]}),
    "next_beams": (
        lambda: sharing.next_beams,
        lambda: {"manager": managed(), "beams": [0], "parents": [0, 0], "ids": itertools.count(1)},
    ),
    "fork_from_prompt": (
        lambda: sharing.fork_from_prompt,
        lambda: {"manager": BlockManager(8, 4), "prompt_len": 5, "n": 2, "ids": itertools.count()},
    ),
    "rehearse": (
        lambda: rehearse,
        lambda: {"scheduler": Scheduler(BlockManager(8, 4)), "requests": PAIRS, "arrivals": [0, 1],
                 "cost": lambda step: 1},
    ),
    "LayerCache": (
        lambda: LayerCache,
        lambda: {"kind": "full", "num_kv_heads": 2, "k_dim": 4, "v_dim": 4, "window": None, "latent": 0, "extra": 0,
                 "source": None},
    ),
    "blocks_kept": (lambda: LayerCache("full", 2, 4, 4).blocks_kept, lambda: {"seq_len": 5, "block_size": 4}),
    "tokens_kept": (lambda: LayerCache("full", 2, 4, 4).tokens_kept, lambda: {"seq_len": 5}),
    "KVCacheSpec": (
        lambda: KVCacheSpec,
        lambda: {"layers": (LayerCache("full", 2, 4, 4),), "name": "", "model_type": ""},
    ),
    "token_bytes": (
        lambda: kv_size.token_bytes,
        lambda: {"layer": LayerCache("full", 2, 4, 4), "expanded": False, **ANSWERS},
    ),
    "bytes_per_token": (lambda: spec().bytes_per_token, lambda: dict(ANSWERS)),
    "cache_bytes": (lambda: spec().cache_bytes, lambda: {"seq_len": 10, "batch_size": 1, **ANSWERS}),
    "allocated_bytes": (
        lambda: spec().allocated_bytes,
        lambda: {"seq_lens": [10, 20], "block_size": 16, "mla": "latent", "hybrid": "window", **ANSWERS},
    ),
    "max_batch": (lambda: spec().max_batch, lambda: {"memory_bytes": 1e6, "seq_len": 10, "block_size": 1}),
    "max_seq_len": (lambda: spec().max_seq_len, lambda: {"memory_bytes": 1e6, "batch_size": 1, "block_size": 1}),
    "weight_bytes": (
        lambda: kv_size.weight_bytes,
        lambda: {"num_parameters": 9, "dtype": "int4", "tensor_parallel": 1},
    ),
    "fit": (
        lambda: fit,
        lambda: {"spec": spec(), "num_parameters": 1000, "memory_bytes": 1e6, "seq_len": 10, "batch_size": 1,
                 "dtype": "float16", "weight_dtype": "float16", "tensor_parallel": 1, "block_size": 16,
                 "reserve_bytes": 0, "gpu_memory_utilization": 0.9},
    ),
    "ways_out": (lambda: kv_size.ways_out, lambda: {"load": load()}),
    "human": (lambda: kv_size.human, lambda: {"num_bytes": 3.0}),
    "find_model": (lambda: kv_size.find_model, lambda: {"name": "Llama-2-7B"}),
    "find_gpu": (lambda: kv_size.find_gpu, lambda: {"name": next(iter(kv_size.gpus()))}),
    **{
        f"a config's {field}": (
            lambda field=field: lambda value: KVCacheSpec.from_config(
                {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
                | {field: value}
            ),
            lambda right=right: {"value": right},
        )
        for field, right in {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
                             "num_key_value_heads": 2, "model_type": "llama", "sliding_window": None,
                             "layer_types": None, "per_layer_config": None}.items()
    },
    "pick_device": (lambda: models.pick_device, lambda: {"device": "auto"}),
    "pick_dtype": (lambda: models.pick_dtype, lambda: {"dtype": "auto", "device": "cpu"}),
    "in_range": (lambda: doctor.in_range, lambda: {"version": "2.6", "wanted": ">=2.6,<3"}),
    "examine": (lambda: doctor.examine, lambda: {"facts": doctor.Facts()}),
    "can_run": (lambda: doctor.can_run, lambda: {"lines": [doctor.Line("a", "b")]}),
    "report": (lambda: doctor.report, lambda: {"lines": [doctor.Line("a", "b")]}),
}  # fmt: skip


def assert_named_or_answered(function, right):
    """`right()` is taken; with any one argument hostile, an answer or one of our errors comes out."""
    function()(**right())
    for argument in right():
        for number in range(len(hostile())):
            value = hostile()[number]
            try:
                answer = function()(**{**right(), argument: value})
                if hasattr(answer, "__next__"):
                    list(answer)
            except MinipagedError as error:
                assert "\n" not in str(error) and len(str(error)) < 700, (argument, number)
            except Exception as error:
                pytest.fail(f"{argument}={shown(value)} raised {type(error).__name__}: {error}")


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_gives_a_named_error_or_an_answer(name):
    assert_named_or_answered(*CALLS[name])


def test_a_wrong_name_of_a_model_is_named_before_anything_is_looked_for():
    for value in hostile():
        if value is not None and not isinstance(value, str):
            with pytest.raises(
                models.ModelNotFoundError, match="is no model's name; give a folder or a transformers id"
            ):
                models.load_model(value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: taken(FirstFitPool(64)).give(0, 3), "no piece of 3 slots at 0 was taken"),
        (lambda: taken(BuddyPool(64)).give(16, 4), "no piece of 4 slots at 16 was taken"),
        (lambda: admitted(MaxLength(16)).admit(0, 3, 4), "request 0 is admitted already"),
        (lambda: admitted(MaxLength(16)).free(7), r"no request 7 here; running are \[0\]"),
        (lambda: simulate([(3, 4)], MaxLength, 64), r"allocator is .*; pass MaxLength\(\)"),
        (lambda: simulate([(3, 4)], MaxLength(), 64, steps=10**9), "steps is 1000000000; .* from 1 to 10,000,000"),
        (lambda: BlockManager(10**9), "num_blocks is 1000000000; it must be a whole number from 1 to 16,777,216"),
        (lambda: BlockPool(2).take(3), "3 blocks are wanted, and 2 are free"),
        (lambda: managed().allocate(5, "three"), "token_ids is 'three'; pass a list of token ids"),
        (lambda: managed().allocate(5, torch.zeros(2, 3)), "token_ids is tensor.*; pass a list of token ids"),
        (lambda: sharing.fork_from_prompt(BlockManager(8, 4), 5, 3, iter([0, 1])), "ids has no more sequence ids"),
        (lambda: spec().max_batch(1e6, 10, mlaa="latent"), "there is no option mlaa"),
        (lambda: KVCacheSpec.from_config({"model_type": "llama", "num_hidden_layers": 10**9}), "at most 100,000"),
        (lambda: LayerCache("ful"), "kind is 'ful'; use one of full"),
        (lambda: whole_number("n", 10**5000), "n is a value of type int; it must be a whole number from 0 to"),
        (lambda: real_number("x", 10**400), "x is 1000.*; it must be a number"),
        (lambda: listed("x", "text", "a list"), "x is 'text'; pass a list"),
    ],
)
def test_nonsense_that_used_to_pass_is_named(call, words):
    with pytest.raises(MinipagedError, match=words):
        call()


def test_a_refusal_changes_nothing():
    pool = taken(BlockPool(8))
    for wrong in ([0, 1, 1], [0, 9], [0, -1], [0, None], 5):
        for call in (pool.give_back, pool.share):
            if call == pool.share and wrong == [0, 1, 1]:
                continue
            with pytest.raises(MinipagedError):
                call(wrong)
            assert [block.ref_count for block in pool.blocks] == [1] * 4 + [0] * 4 and pool.num_free == 4
    manager = BlockManager(8, 4, watermark=0)
    with pytest.raises(InvalidInputError):
        sharing.fork_from_prompt(manager, 5, 3, iter([0, 1]))
    assert manager.seq_ids == [] and manager.num_free_blocks == 8


# ---- functions

# Every parameter that takes a function, by name. (`on_step` is in test_beam_search, drafts are in test_speculative.)
TAKES_A_FUNCTION = {
    "hash_function": lambda f: BlockManager(8, 4, hash_function=f, enable_prefix_caching=True),
    "hash_function, of the index": lambda f: PrefixIndex(f),
    "parents": lambda f: saved_by_beams([(3, 4)], 2, parents=f),
    "cost": lambda f: rehearse(Scheduler(BlockManager(8, 4)), [(3, 4)], cost=f),
    "spec": lambda f: Puzzle("mine", f, (8,), (1,), (8,)),
    "kernel": lambda f: run_puzzle("load", f),
}


@pytest.mark.parametrize("value", [5, 0, False, "", "hash", [], (), {}, 2.5, object()])
@pytest.mark.parametrize("name", TAKES_A_FUNCTION)
def test_what_cannot_be_called_is_no_function(name, value):
    with pytest.raises(InvalidInputError, match=f"^{name.partition(',')[0]} is .*; pass a") as caught:
        TAKES_A_FUNCTION[name](value)
    assert "function" in str(caught.value)


def test_a_hash_that_is_no_key_is_named_before_anything_changes():
    manager = BlockManager(8, 4, watermark=0, enable_prefix_caching=True, hash_function=lambda parent, tokens: [parent])
    with pytest.raises(InvalidInputError, match=r"hash_function returned \[0\], which no dictionary takes as a key"):
        manager.allocate(0, range(9))
    assert manager.seq_ids == [] and manager.num_free_blocks == 8
    strings = BlockManager(8, 4, watermark=0, enable_prefix_caching=True, hash_function=lambda *key: repr(key))
    strings.allocate(0, range(9))
    strings.mark_computed(0, 9)
    assert strings.allocate(1, range(9)) == 8 and hash_block(0, (1, 2)) == hash_block(0, (1, 2))


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1, None, "1", True])
def test_a_step_that_takes_no_length_of_time_ends_a_rehearsal(time):
    with pytest.raises(InvalidInputError, match="the cost of a step is .*; it must be a number of at least 0"):
        rehearse(Scheduler(BlockManager(8, 4)), [(3, 4), (3, 4)], [0.0, 5.0], cost=lambda step: time)


@pytest.mark.parametrize(
    ("requests", "arrivals", "words"),
    [
        ([(3, 4)], [], "0 arrivals for 1 requests"),
        ([(3, 4)] * 3, [0.0, 1.0], "2 arrivals for 3 requests"),  # the third was left out in silence
        ([(3, 4)] * 2, [5.0, 1.0], "ascending order"),
        ([(3, 4)], [float("nan")], "arrival 0 is nan"),
        ([(3, 0)], None, r"request 0 is \(3, 0\)"),
        ([(0, 3)], None, r"request 0 is \(0, 3\)"),
        ([], None, "no requests"),
        (None, None, "requests is None"),
    ],
)
def test_a_rehearsal_refuses_what_it_cannot_play(requests, arrivals, words):
    with pytest.raises(InvalidInputError, match=words):
        rehearse(Scheduler(BlockManager(8, 4)), requests, arrivals)
    with pytest.raises(InvalidInputError, match="scheduler is 'mine'; pass a fresh one"):
        rehearse("mine", [(3, 4)])
