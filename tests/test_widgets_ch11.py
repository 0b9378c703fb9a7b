"""Chapter 11's widgets and pictures: the counts are the manager's, and every sentence says what is drawn."""

from __future__ import annotations

import pytest

from minipaged.block_manager import BlockManager
from minipaged.plots import ch11 as plots
from minipaged.widgets.ch11 import POOL, fork_write_free, samples, step_through_beams, tables_of


def test_nineteen_tokens_share_two_blocks_until_somebody_writes():
    panel = fork_write_free()
    assert "2 blocks of 32 are in use, 2 of them shared: 50% less" in panel.sentence
    panel.controls["written"].value = 1
    assert "3 blocks of 32 are in use, 1 of them shared: 25% less" in panel.sentence
    assert "Copies made: 1." in panel.sentence
    panel.controls["prompt"].value = 16  # the last block is full: nothing is copied
    assert "Copies made: 0." in panel.sentence and "1 of them shared" in panel.sentence
    panel.controls["n"].value, panel.controls["ended"].value = 6, 5
    assert "1 sequence names 2 blocks" in panel.sentence and "0 of them shared" in panel.sentence


def test_of_the_samples_that_the_widget_has_one_always_goes_on():
    panel = fork_write_free()
    assert panel.controls["ended"].max == 1
    panel.controls["n"].value = 4
    panel.controls["ended"].value = 3
    panel.controls["n"].value = 2
    assert panel.controls["ended"].value == 1 and "1 sequence names" in panel.sentence
    panel.controls["n"].value = 1
    assert panel.controls["ended"].value == 0 and "1 sequence names" in panel.sentence


def test_the_free_slot_of_a_shared_block_has_nobodys_colour():
    both = {0: ([7, 1], 7), 1: ([7, 1], 7)}
    assert [run.owner for run in plots._block_runs(both, 1, [0, 1], 0, 4)] == [0, None]
    assert [run.owner for run in plots._block_runs({0: ([7, 1], 7)}, 1, [0], 0, 4)] == [0, 0]


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 48])
@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("written", [0, 1, 32])
def test_every_position_of_the_widget_fits_its_pool_and_counts_right(prompt, n, written):
    manager, copies, total = samples(prompt, n, written, ended=2)
    assert len(manager.seq_ids) == max(1, n - 2)
    for block, names in plots.owners(tables_of(manager)).items():
        assert manager.pool.blocks[block].ref_count == len(names)
    assert total == (n - 1 if written and prompt % 16 else 0)
    assert len(copies) == (total if written == 1 else 0)
    alone = sum(-(-(prompt + written) // 16) for _ in range(n))
    assert alone <= POOL


def test_the_owners_of_a_block_are_its_count():
    manager = BlockManager(9, 4, watermark=0, block_order=[7, 1, 3])
    manager.allocate(0, range(7))
    manager.fork(0, 1)
    assert plots.owners(tables_of(manager)) == {7: [0, 1], 1: [0, 1]}
    assert manager.append_slots(0) == [(1, 3)]
    assert plots.owners(tables_of(manager)) == {7: [0, 1], 1: [1], 3: [0]}
    picture = plots.shared_pool(tables_of(manager), 9, 4, copies=[(1, 3)], columns=36)
    assert picture.data | {"copies": 1, "blocks": 3, "alone": 4, "shared": 1, "percent": 25.0} == picture.data


def test_the_moments_of_figure_8_are_told_one_by_one():
    texts = {0: "abcdefgA", 1: "abcdefgB"}
    shots = [
        plots.Shot("fork", {0: ([7, 1], 7), 1: ([7, 1], 7)}),
        plots.Shot("A writes", {0: ([7, 3], 8), 1: ([7, 1], 7)}, [(1, 3)]),
        plots.Shot("B writes", {0: ([7, 3], 8), 1: ([7, 1], 8)}),
    ]
    sentence = plots.moments(shots, [7, 1, 3], texts, 4).sentence
    assert "fork: A [7, 1], B [7, 1]." in sentence
    assert "A writes: A [7, 3], B [7, 1], block 1 copied to block 3." in sentence


def test_a_tree_shows_blocks_by_count_and_what_was_given_back():
    before = {0: ([0, 1, 2], 10), 1: ([0, 1, 3], 10)}
    now = {0: ([0, 1, 2], 11), 1: ([0, 1, 4], 11)}
    picture = plots.block_tree(now, {0: "Once"}, 4, before=before)
    assert picture.data["gone"] == 1 and picture.data["shared"] == 2 and picture.data["most"] == 2
    assert picture.data["blocks"] == 4 and picture.data["alone"] == 6
    panel = step_through_beams([before, now], [{0: "Once"}, {0: "Once"}], 4)
    assert "Step 1 of 2" in panel.sentence and "Given back since the moment before: 0" in panel.sentence
    panel.controls["step"].value = 2
    assert "Step 2 of 2" in panel.sentence and "Given back since the moment before: 1" in panel.sentence


def test_the_pictures_say_their_numbers():
    saved = plots.saved_beside_paper([2, 4], {"paper": [6.09, 8.53], "ours": [4.7, 8.4]}, {"drawn": [39.0, 58.0]})
    assert (
        "whole blocks: 4.7, 8.4" in saved.sentence
        and "beam search, here, beams drawn at random: 39.0, 58.0" in saved.sentence
    )
    prefill = plots.prefill(["1", "2"], [110, 14], [0, 96])
    assert "96 of them (44%) were found" in prefill.sentence and prefill.data["computed"] == 124
    rows = plots.next_row([("continuous + paged", 80, 2000, 5.0), ("+ prefix caching", 60, 900, 7.25)])
    assert "+ prefix caching: 60 steps, 900 tokens computed, 7.2 requests running" in rows.sentence
    assert rows.figure.get_suptitle() == (
        "Prefix caching: 80 → 60 steps, 2,000 → 900 tokens, 5.0 → 7.2 requests at once"
    )
    kept = plots.kept_blocks([plots.Kept("A ends", {}, {0: (0, 0), 1: (0, 1)}, [2, 1, 0])], 3)
    assert kept.sentence == "A ends: 0 blocks in use, kept A0, A1; the queue of free blocks is [2, 1, 0]."
    again = plots.Kept("A again", {0: (0, 0), 1: (0, 1)}, {}, [2], {1: 1}, {0})
    assert "2 blocks in use; found A0, computed A1, kept nothing" in plots.kept_blocks([again], 3).sentence
