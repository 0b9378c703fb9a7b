"""A right answer stays right in another style, and code that is wrong in an unusual way still gets its sentence."""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import pytest
import torch

from minipaged import exercises
from minipaged.exercises import _base
from tests.test_notebook_contract import NOTEBOOKS, solutions


def _each(change):
    """The same change to every number inside tuples and lists; dictionaries keep their keys."""

    def deep(value):
        if isinstance(value, dict):
            return {key: deep(part) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(map(deep, value))
        return change(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    return deep


def _swapped(value):
    if isinstance(value, (tuple, list)):
        other = list if isinstance(value, tuple) else tuple
        return other(map(_swapped, value))
    return value


def _array(value):
    """Sequences of numbers become arrays, tensors become numpy's."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, (tuple, list)):
        flat = value and all(isinstance(part, (bool, int, float)) for part in value)
        return np.array(value) if flat else type(value)(map(_array, value))
    return value


def _tensor(value):
    found = _array(value)
    if isinstance(found, np.ndarray):
        return torch.from_numpy(found)
    return type(value)(map(_tensor, value)) if isinstance(value, (tuple, list)) else value


STYLES = {
    "tuples for lists": _swapped,
    "floats": _each(float),
    "numpy numbers": _each(lambda x: np.asarray(x)[()]),
    "torch numbers": _each(lambda x: torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)),
    "numpy arrays": _array,
    "tensors": _tensor,
    "float64": lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
    "generators": lambda x: (part for part in x) if isinstance(x, list) else x,
    "with a gradient": lambda x: (
        x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    ),
}


def _restyled(answer, restyle):
    if hasattr(answer, "run"):  # a Triton kernel: it returns nothing that could have a style
        return answer
    return (lambda *args: restyle(answer(*args))) if callable(answer) else restyle(answer)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_right_answer_is_right_in_every_style(path, style):
    for name, answer in solutions(path):
        result = getattr(exercises, name)(_restyled(answer, STYLES[style]))
        assert result.status == "right", f"{name}: {result.message}"


def test_nan_is_no_number_that_is_close():
    right = lambda requests: max(p + o - 1 for p, o in requests)
    result = exercises.check_04_preallocation(lambda requests: (right(requests), float("nan")))
    assert result.status == "wrong" and "share is nan" in result.message


def test_a_number_is_not_cut_to_a_whole_one():
    from minipaged.shapes import contiguous_strides, flat_offset

    for change in (lambda x: x + 0.5, str, lambda x: None if x else False):
        check = exercises.check_02_offset
        assert check(lambda i, s, c=change: c(flat_offset(i, contiguous_strides(s)))).status != "right"
    assert exercises.check_01_dart(lambda probs, dart: 1.5).status == "wrong"


def test_a_mask_is_not_a_list_of_ids():
    assert "True where a whole number" in exercises.check_01_top_p(lambda probs, p: [True] * len(probs)).message


@pytest.mark.parametrize("kind", [int, float, np.bool_, np.int64, torch.tensor], ids=lambda kind: kind.__name__)
def test_one_and_zero_are_yes_and_no(kind):
    assert exercises.check_07_needs_new_block(lambda n, size: kind(n % size == 0)).status == "right"


def test_a_question_in_a_message_ends_with_its_own_mark():
    def for_own_blocks(table, slot, size):
        if slot // size in table:
            return table.index(slot // size) * size + slot % size
        return None

    message = exercises.check_07_physical_slot(for_own_blocks).message
    assert message.endswith("? Block 2 is not in the table: return -1")


def test_code_that_leaves_python_gets_a_sentence():
    result = exercises.check_07_physical_slot(lambda *args: sys.exit("done"))
    assert result.status == "wrong" and "SystemExit: done" in result.message


def test_a_loop_that_never_ends_gets_a_sentence(monkeypatch):
    monkeypatch.setattr(_base, "TIME_LIMIT", 0.2)

    def stands_still(sizes, pool):
        served, free = [], pool
        while sizes:
            if sizes[0] <= free:
                free -= sizes[0]
                served.append(sizes.pop(0))
        return [served], []

    def forever(*_):
        yield from itertools.count()

    if sys.gettrace() is not None:
        pytest.skip("a debugger or coverage tool traces this run")
    assert "never end" in exercises.check_06_queue(stands_still).message
    assert sys.gettrace() is None
    start = time.monotonic()
    assert exercises.check_07_workload(forever).status == "wrong"
    assert "stop at max_tokens" in exercises.check_04_decode_loop(_without_limit).message
    assert time.monotonic() - start < 5


def _without_limit(feed, prompt, max_tokens):
    new = [feed(prompt)]
    while True:
        new.append(feed([1]))


def test_a_half_filled_answer_is_not_attempted_yet():
    parts = {"tokens": 178, "reserved": ..., "internal": ..., "external": ..., "idle": 0}
    assert exercises.check_06_five_requests(parts).status == "not attempted"
