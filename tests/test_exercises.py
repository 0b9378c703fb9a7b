"""Every check is tried on a stub and on plausible wrong answers, and says something different about each.

tests/wrong_answers/chNN.py holds WRONG = {"check_NN_name": [(answer, "words the message must hold"), ...]}.
"""

from __future__ import annotations

import functools
import importlib
import math

import pytest
import torch

from minipaged import exercises


def checks():
    for chapter in exercises.chapters():
        module = importlib.import_module(f"minipaged.exercises.{chapter}")
        for name in sorted(vars(module)):
            if name.startswith("check_"):
                yield pytest.param(chapter, name, id=name)


@pytest.mark.parametrize(("chapter", "name"), checks())
def test_wrong_answers_are_told_apart(chapter, name):
    wrong = importlib.import_module(f"tests.wrong_answers.{chapter}").WRONG[name]
    check = getattr(exercises, name)
    assert len(wrong) >= 3
    messages = []
    for answer, words in wrong:
        result = check(answer)
        assert result.status == "wrong", f"{answer!r}: {result}"
        assert words in result.message, f"{answer!r}: {result}"
        messages.append(result.message)
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize(("chapter", "name"), checks())
def test_a_check_never_raises(chapter, name):
    check = getattr(exercises, name)
    for blank in (..., None):
        assert check(blank).status == "not attempted"
    for nonsense in (object(), "what", -1, [], {}, lambda *a, **k: 1 / 0, lambda: 3, lambda *a, **k: object()):
        assert check(nonsense).status == "wrong", nonsense
    assert check(lambda *a, **k: ...).status in ("not attempted", "wrong")


def test_guess_runs_blank_and_filled(capsys):
    exercises.guess(..., 20, "passes")
    exercises.guess(5, 20, "passes")
    exercises.guess(20, 20, "passes")
    exercises.guess("K and V", "K and V")
    exercises.guess(9, 8.9, "%")
    assert capsys.readouterr().out.splitlines() == [
        "no guess yet | computed: 20 passes",
        "your guess: 5 passes (look again) | computed: 20 passes",
        "your guess: 20 passes (right) | computed: 20 passes",
        "your guess: K and V (right) | computed: K and V",
        "your guess: 9% (look again) | computed: 8.9%",
    ]


def guessed(capsys, mine, actual, unit="", **options):
    exercises.guess(mine, actual, unit, **options)
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize("mine", ["nan", "NaN", " nan ", float("nan"), math.nan, torch.tensor(math.nan)])
@pytest.mark.parametrize("actual", ["nan", math.nan])
def test_a_guess_of_nan_is_right_whatever_way_it_is_written(capsys, mine, actual):
    assert " (right) | computed: nan" in guessed(capsys, mine, actual)


@pytest.mark.parametrize(("mine", "actual"), [("nan", 0.269), (0.269, "nan"), (math.inf, 5), (5, math.inf)])
def test_not_a_number_and_infinity_equal_no_number(capsys, mine, actual):
    assert " (look again) " in guessed(capsys, mine, actual, within=0.5)


@pytest.mark.parametrize("mine", [1140, "1140", "1,140", " 1,140 ", "1,140.0", "1_140", 1140.0, torch.tensor(1140)])
def test_a_guess_may_have_thousands_commas(capsys, mine):
    assert guessed(capsys, mine, 1140, "rows").endswith(" rows (right) | computed: 1,140 rows")


@pytest.mark.parametrize("mine", ["1,14", "11,40", "1,1400", "1,141", "1140 and 3"])
def test_a_comma_elsewhere_is_no_thousand(capsys, mine):
    assert " (look again) " in guessed(capsys, mine, 1140, "rows")


def test_whole_numbers_are_printed_in_thousands(capsys):
    assert (
        guessed(capsys, 231000, 231345, "tokens")
        == "your guess: 231,000 tokens (look again) | computed: 231,345 tokens"
    )
    assert guessed(capsys, ..., torch.zeros(409600).numel()) == "no guess yet | computed: 409,600"
    assert guessed(capsys, ..., 1762.5) == "no guess yet | computed: 1762.5"
    assert guessed(capsys, ..., True) == "no guess yet | computed: True"


def test_a_question_that_asks_about_takes_what_is_close_enough(capsys):
    near = functools.partial(guessed, capsys, actual=22.8, unit="times", within=0.05)
    assert near(23) == "your guess: 23 times (close enough) | computed: 22.8 times"
    assert near(22.8) == "your guess: 22.8 times (right) | computed: 22.8 times"
    assert near(21) == "your guess: 21 times (look again) | computed: 22.8 times"
    assert guessed(capsys, "231,000", 231_345, within=0.05) == "your guess: 231,000 (close enough) | computed: 231,345"
    assert guessed(capsys, 21, 20, "passes") == "your guess: 21 passes (look again) | computed: 20 passes"


@pytest.mark.parametrize("mine", ["K and V", "V and K", "k, v", "V,K", "V & K", {"V", "K"}])
def test_a_guess_of_several_words_has_no_order(capsys, mine):
    assert " (right) " in guessed(capsys, mine, "K and V")


@pytest.mark.parametrize("mine", ["K", "Q and K", "Q, K and V", "K and K", "KV cache"])
def test_another_set_of_words_is_wrong(capsys, mine):
    assert " (look again) " in guessed(capsys, mine, "K and V")


def test_a_list_keeps_its_order(capsys):
    assert " (right) " in guessed(capsys, "[0, 1, 6]", [0, 1, 6])
    assert " (look again) " in guessed(capsys, [1, 0, 6], [0, 1, 6])
    assert " (look again) " in guessed(capsys, "[1, 0, 6]", [0, 1, 6])


@pytest.mark.parametrize("mine", ["[0,1,6]", " [ 0, 1 ,6 ]", "[0,  1,\t6]"])
def test_a_list_may_be_written_with_or_without_blanks(capsys, mine):
    assert " (right) " in guessed(capsys, mine, [0, 1, 6])


@pytest.mark.parametrize("mine", ["[01, 6]", "[0 1 6]", "[0, 16]", "[0, 1, 6, 13]"])
def test_a_blank_between_numbers_is_no_comma(capsys, mine):
    assert " (look again) " in guessed(capsys, mine, [0, 1, 6])


@pytest.mark.parametrize(
    ("mine", "actual", "unit", "shown"),
    [
        ("97%", 97, "%", "97%"),
        ("97 %", 97, "%", "97%"),
        ("1,140 rows", 1140, "rows", "1,140 rows"),
        ("16 GiB", 16, "GiB", "16 GiB"),
        ("16gib", 16, "GiB", "16 GiB"),
        ("1 token", 1, "tokens", "1 token"),
        ("1 tokens", 1, "tokens", "1 token"),
        ("7 of 10", 7, "of 10", "7 of 10"),
    ],
)
def test_a_guess_may_be_written_with_its_unit(capsys, mine, actual, unit, shown):
    assert guessed(capsys, mine, actual, unit) == f"your guess: {shown} (right) | computed: {shown}"


@pytest.mark.parametrize("mine", ["96%", "%", "rows", "97 rows", "97% or so"])
def test_a_unit_does_not_make_a_guess_right(capsys, mine):
    assert f"your guess: {mine}" in (line := guessed(capsys, mine, 97, "%"))
    assert " (look again) " in line


def test_one_thing_is_named_in_the_singular(capsys):
    for unit, after in (
        ("tokens", "token"),
        ("passes", "pass"),
        ("axes", "axis"),
        ("empty slots", "empty slot"),
        ("tokens differ", "token differs"),
        ("texts differ", "text differs"),
        ("predictions before it", "prediction before it"),
        ("of 29 tokens differ", "of 29 tokens differ"),
        ("times", "times"),
        ("步", "步"),
    ):
        assert guessed(capsys, 2, 1, unit) == f"your guess: 2 {unit} (look again) | computed: 1 {after}"
        assert guessed(capsys, 1, 2, unit) == f"your guess: 1 {after} (look again) | computed: 2 {unit}"
    assert guessed(capsys, ..., 1.0, "units") == "no guess yet | computed: 1.0 units"


def test_a_name_that_is_a_number_has_no_commas(capsys):
    for mine in (1604, "1604", "1,604"):
        assert " (right) | computed: 1604" in guessed(capsys, mine, "1604")
    assert guessed(capsys, 1604, "1604") == "your guess: 1604 (right) | computed: 1604"
