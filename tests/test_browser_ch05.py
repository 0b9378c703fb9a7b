"""In a real browser: chapter 5's calculator answers to key, typing and drag, and its picture never goes blank."""

from __future__ import annotations

import re
import time

import pytest

from tests import browser
from tests.browser import Notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine"),
]

# Look at the picture in every frame, and note the frames in which there is none or its height jumped.
WATCH = """widget => {
    const seen = window.seen = {frames: 0, blank: 0, heights: new Set(), sources: new Set(), on: true};
    const look = () => {
        const image = widget.querySelector('img');
        const height = image ? image.getBoundingClientRect().height : 0;
        seen.frames += 1;
        if (!image || !image.naturalWidth || height < 20) seen.blank += 1;
        seen.heights.add(Math.round(height));
        if (image) seen.sources.add(image.src);
        if (seen.on) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
}"""
SEEN = """() => {
    const {frames, blank, heights, sources} = window.seen;
    window.seen.on = false;
    return {frames, blank, heights: [...heights], pictures: sources.size};
}"""


@pytest.fixture(scope="module")
def notebook():
    with browser.lab() as address, browser.chromium() as context:
        opened = Notebook(context, address, "05_kv_cache_size.ipynb")
        try:
            opened.run_all()
            yield opened
        finally:
            opened.close()


@pytest.fixture
def calculator(notebook):
    return Calculator(notebook.widget_with("sequence length"))


class Calculator:
    """The calculator on the page, as a reader sees it."""

    def __init__(self, widget):
        self.widget = widget
        self.slider = widget.locator(".widget-slider", has_text="sequence length")
        self.handle = self.slider.locator(".noUi-handle")
        self.readout = self.slider.locator(".widget-readout")

    def sentence(self):
        return self.widget.locator("[role=status]").inner_text()

    def tokens(self):
        """The sequence length in the sentence, such as 4096 of "16 × 4,096 tokens need"."""
        return int(re.search(r"× ([\d,]+) tokens need", self.sentence())[1].replace(",", ""))

    def gib(self):
        return float(re.search(r"tokens need ([\d,.]+) GiB", self.sentence())[1].replace(",", ""))

    def wait_for_other(self, tokens, seconds=30.0):
        """The sequence length once it is no longer `tokens`."""
        end = time.monotonic() + seconds
        while self.tokens() == tokens:
            assert time.monotonic() < end, f"still {self.sentence()!r} after {seconds} s"
            time.sleep(0.05)
        return self.tokens()

    def type(self, text):
        self.readout.click()
        self.readout.press("ControlOrMeta+a")
        self.readout.press_sequentially(text)
        self.readout.press("Enter")
        end = time.monotonic() + 30
        while self.tokens() != int(text):
            assert time.monotonic() < end, f"typed {text}, still {self.sentence()!r}"
            time.sleep(0.05)


def half_a_mib(tokens):
    """GiB of 16 sequences of Llama-2-7B in whole blocks of 16 tokens, as the sentence rounds it."""
    return round(16 * -(-tokens // 16) * 16 * 524_288 / 2**30, 2)


def test_the_length_moves_by_key(calculator):
    calculator.type("4096")
    before = calculator.tokens()
    assert (before, calculator.gib()) == (4096, 32.0)
    calculator.handle.focus()
    calculator.handle.press("ArrowRight")
    after = calculator.wait_for_other(before)
    assert after == round(4096 * 2**0.5)  # half a doubling a step
    assert calculator.gib() == half_a_mib(after)
    assert calculator.readout.inner_text().strip().replace(",", "") == str(after)


def test_the_length_moves_by_typing(calculator):
    before = calculator.tokens()
    calculator.type("6000" if before != 6000 else "7000")
    after = calculator.wait_for_other(before)
    assert after in (6000, 7000)
    assert calculator.gib() == half_a_mib(after)


def drag_and_press(notebook, calculator):
    """Drag the handle to the left, then press six keys; what was seen frame by frame meanwhile."""
    calculator.type("4096")
    page, box = notebook.page, calculator.handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    calculator.widget.evaluate(WATCH)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 9):
        page.mouse.move(x - 4 * step, y, steps=2)
        time.sleep(0.05)
    page.mouse.up()
    assert 128 <= calculator.wait_for_other(4096) < 4096
    calculator.handle.focus()
    for _ in range(6):
        tokens = calculator.tokens()
        calculator.handle.press("ArrowRight")
        calculator.wait_for_other(tokens)
    time.sleep(0.5)
    return page.evaluate(SEEN)


def test_the_length_moves_by_drag_and_no_frame_is_blank(notebook, calculator):
    seen = drag_and_press(notebook, calculator)
    assert seen["frames"] > 30 and seen["pictures"] >= 6, seen
    assert seen["blank"] == 0, seen
    assert len(seen["heights"]) == 1, seen  # the cell does not jump
    assert calculator.gib() == half_a_mib(calculator.tokens())
    assert notebook.errors == []
