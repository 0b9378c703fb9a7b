"""Chapter 6's widgets answer with the right sentence; no browser needed."""

from __future__ import annotations

import pytest

import minipaged.plots.ch06 as plots
from minipaged.fragmentation import FirstFit, MaxLength, Oracle, PowerOfTwo, lognormal_lengths, simulate
from minipaged.widgets.ch06 import play_pool, what_if
from tests.growing_allocator import GrowingChunks


@pytest.fixture(scope="module")
def player():
    return play_pool(lognormal_lengths(60, 12, 24, max_len=64, seed=2), 240, steps=40)


def test_a_step_shows_its_own_snapshot(player):
    player.controls["allocator"].value = "MaxLength"
    player.controls["step"].value = 7
    requests = lognormal_lengths(60, 12, 24, max_len=64, seed=2)
    snapshot = simulate(requests, MaxLength(64), 240, steps=40, warmup=0, record=True).timeline[7]
    assert f"Step 7, 240 slots: {snapshot.tokens} hold tokens, {snapshot.reserved} are reserved" in player.sentence
    assert "48 external" in player.sentence  # three times 64, and a remainder


@pytest.mark.parametrize("name", ["FirstFit", "MaxLength", "PowerOfTwo", "Oracle"])
def test_every_allocator_plays_from_the_first_step_to_the_last(player, name):
    player.controls["allocator"].value = name
    for step in (0, 39):
        player.controls["step"].value = step
        assert player.sentence.startswith(f"Step {step}, ")


def test_play_covers_the_same_steps_as_the_slider(player):
    slider = player.controls["step"]
    assert (player.play.min, player.play.max) == (slider.min, slider.max) and player.children[0] is player.play
    assert {player.link.source[0], player.link.target[0]} == {player.play, slider}


def test_what_if_follows_its_sliders():
    panel = what_if(100)
    before = panel.sentence
    panel.controls["output"].value = 20
    assert panel.sentence != before and "MaxLength" in panel.sentence
    panel.controls["pool"].value = 1024
    assert "MaxLength" in panel.sentence and "with 1.0 running" in panel.sentence


def test_what_if_says_how_many_can_never_fit():
    panel = what_if(100)
    panel.controls["max_len"].value = 2048
    panel.controls["pool"].value = 1024
    assert "refused" in panel.sentence  # a pool of 1,024 never has 2,048 in one piece: all 100 under MaxLength
    assert "100 requests were refused" in panel.sentence


def test_equal_lengths_have_no_spread_to_waste():
    panel = what_if(50)
    panel.controls["spread"].value = 0.0
    assert panel.picture.data["low"] <= panel.picture.data["high"]


# --- what the pictures are made of -----------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", [FirstFit(64), MaxLength(64), PowerOfTwo(64), Oracle()], ids=lambda a: a.name)
def test_every_slot_of_the_pool_is_drawn_once_in_its_state(allocator):
    requests = lognormal_lengths(60, 12, 24, max_len=64, seed=2)
    run = simulate(requests, allocator, 250, steps=60, warmup=0, record=True)
    for snapshot in run.timeline:
        runs = plots.runs_of(snapshot, 250)
        assert sorted(slot for r in runs for slot in range(r.start, r.start + r.length)) == list(range(250))
        drawn = {state: sum(r.length for r in runs if r.state == state) for state in ("used", "reserved")}
        assert drawn == {"used": snapshot.tokens, "reserved": snapshot.reserved}
        assert sum(r.length for r in runs if r.state == "wasted" and r.owner is not None) == snapshot.internal


def test_scattered_chunks_are_drawn_in_the_order_of_their_tokens():
    run = simulate([(6, 4), (5, 6)], GrowingChunks(4), 40, arrivals=[0, 0], steps=5, warmup=0, record=True)
    for snapshot in run.timeline:
        runs = plots.runs_of(snapshot, 40)
        assert sum(r.length for r in runs) == 40
        assert sum(r.length for r in runs if r.state == "used") == snapshot.tokens


def test_a_request_that_comes_back_has_two_stays():
    requests = [(6, 2), (1, 7), (6, 2)]
    timeline = simulate(requests, FirstFit(64), 24, steps=30, warmup=0, seed=0, record=True).timeline
    stays = plots.stays(timeline)
    assert len(stays) > 3 and {s.request for s in stays} == {0, 1, 2}
    for s in stays:
        assert s.written_last - s.written_first == s.end - s.first - 1
        if s.end < 30:
            assert s.written_last == s.needed


def test_the_pictures_say_what_they_show():
    requests = [(6, 2), (1, 7), (6, 2), (1, 7), (8, 4)]
    timeline = simulate(requests, FirstFit(64), 32, arrivals=[0] * 5, steps=12, warmup=0, record=True).timeline
    picture = plots.pool_over_time(timeline, 32, waits=(4, 3))
    assert picture.data == {"name": "E", "needed": 12, "free": 16, "hole": 8, "step": 3}
    assert "the longest hole has 8" in picture.sentence
    assert "E waits beside 16 free slots, 8 of them in one piece" in plots.pool_now(timeline[3], 32).sentence
    assert plots.padding([3, 7, 2]).data == {"cells": 21, "empty": 9, "total": 12}
    assert plots.letter(0) + plots.letter(25) + plots.letter(26) == "AZA1"
