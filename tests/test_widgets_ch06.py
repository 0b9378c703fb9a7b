"""Chapter 6's widgets answer with the right sentence; no browser needed."""

from __future__ import annotations

import pytest

from minipaged.fragmentation import MaxLength, lognormal_lengths, simulate
from minipaged.widgets.ch06 import play_pool, what_if


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
