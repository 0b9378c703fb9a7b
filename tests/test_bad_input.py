"""Whatever is passed, a right answer or one of minipaged's own errors comes out: no crash, no endless loop."""

from __future__ import annotations

import pytest

from minipaged.block_manager import BlockManager, PrefixIndex, hash_block
from minipaged.errors import InvalidInputError
from minipaged.puzzles import Puzzle
from minipaged.puzzles import run as run_puzzle
from minipaged.scheduler import Scheduler, rehearse
from minipaged.sharing import saved_by_beams

# Every parameter that takes a function, by name. (`on_step` is in test_beam_search, drafts are in test_speculative.)
TAKES_A_FUNCTION = {
    "hash_function": lambda f: BlockManager(8, 4, hash_function=f, enable_prefix_caching=True),
    "hash_function, of the index": lambda f: PrefixIndex(f),
    "parents": lambda f: saved_by_beams([(3, 4)], 2, parents=f),
    "cost": lambda f: rehearse(Scheduler(BlockManager(8, 4)), [(3, 4)], cost=f),
    "spec": lambda f: Puzzle("mine", f, (8,), (1,), (8,)),
    "kernel": lambda f: run_puzzle("load", f),
}


@pytest.mark.parametrize("value", [5, 0, False, "", "hash", [], (), {}, 2.5, object()], ids=repr)
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
