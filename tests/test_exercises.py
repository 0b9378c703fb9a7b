"""Every check is tried on a stub and on plausible wrong answers, and says something different about each.

tests/wrong_answers/chNN.py holds WRONG = {"check_NN_name": [(answer, "words the message must hold"), ...]}.
"""

from __future__ import annotations

import importlib

import pytest

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
