"""In a real browser: a notebook runs top to bottom in JupyterLab, and its first widget answers to the keyboard.

Two notebooks by default, since nbval runs all of them anyway; MINIPAGED_BROWSER=all takes every one.
"""

from __future__ import annotations

import json
import os
import time

import pytest

from tests import browser
from tests.browser import ROOT, Notebook

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
if os.environ.get("MINIPAGED_BROWSER") != "all":
    NOTEBOOKS = ["03_attention.ipynb", "06_fragmentation.ipynb"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def address():
    with browser.lab() as address:
        yield address


@pytest.fixture(scope="module")
def context():
    with browser.chromium() as context:
        yield context


def changed(read, before, seconds=30.0):
    """What `read()` says once it differs from `before`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (now := read()) != before:
            return now
        time.sleep(0.05)
    raise AssertionError(f"still {before!r} after {seconds} s")


# Of one widget: sliders whose track is too short to move on, and descriptions that do not fit in their place.
CRAMPED = """widget => {
    const short = [...widget.querySelectorAll('.noUi-target')].map(e => e.clientWidth).filter(width => width < 100);
    const cut = [...widget.querySelectorAll('.widget-label')].filter(e => e.scrollWidth > e.clientWidth + 1);
    return [...short, ...cut.map(e => e.innerText)];
}"""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_runs_and_a_widget_answers(address, context, name):
    notebook = Notebook(context, address, name)
    try:
        notebook.run_all()
        widget = notebook.first_widget()
        read = widget.locator("[role=status]").inner_text
        before = changed(read, "")  # drawn a moment after the widget's frame
        assert widget.evaluate(CRAMPED) == []
        handle = widget.locator(".noUi-handle").first
        handle.focus()
        position = handle.get_attribute("aria-valuenow")
        low = float(position) < float(handle.get_attribute("aria-valuemax"))
        handle.press("ArrowRight" if low else "ArrowLeft")
        assert changed(read, before).strip()
        assert handle.get_attribute("aria-valuenow") != position
        assert notebook.errors == []
    finally:
        notebook.close()


def test_a_cell_that_fails_far_below_the_screen_is_seen(context, tmp_path):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": "# far\n\n" + "down\n\n" * 20} for _ in range(60)]
    cells.insert(40, {"cell_type": "code", "metadata": {}, "source": "1 / 0", "outputs": [], "execution_count": None})
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "fails.ipynb").write_text(json.dumps(notebook))
    with browser.lab(notebooks=tmp_path) as address:
        opened = Notebook(context, address, "fails.ipynb")
        with pytest.raises(AssertionError, match="ZeroDivisionError: division by zero"):
            opened.run_all()
        opened.close()
