"""A second language: complete where a chapter exists in it, English elsewhere, and never a box in place of a glyph."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from string import Formatter

import pytest

from minipaged import exercises, language, use_language
from minipaged.errors import InvalidInputError
from minipaged.plots import fonts
from minipaged.plots.words import say

ROOT = Path(__file__).resolve().parent.parent
OTHERS = [code for code in language.LANGUAGES if code != "en"]
TABLES = ("plots", "widgets", "exercises")


@pytest.fixture(autouse=True)
def english_again():
    yield
    language._chosen.clear()


@pytest.fixture
def chinese_font():
    name = fonts.font_for("zh")
    if name is None:
        pytest.skip("no installed font has Chinese glyphs: apt install fonts-wqy-microhei")
    return name


def table(package, code):
    name = f"minipaged.{package}.words" + ("" if code == "en" else f"_{code}")
    return importlib.import_module(name).WORDS


def fields(text):
    """The placeholders of a format string: name, conversion and format."""
    return sorted((name, conversion or "", spec) for _, name, spec, conversion in Formatter().parse(text) if name)


# --- the tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", OTHERS)
@pytest.mark.parametrize("package", TABLES)
def test_a_translated_chapter_has_all_its_words(package, code):
    chapters = {path.stem[:2] for path in (ROOT / "notebooks" / code).glob("[0-9][0-9]_*.ipynb")} | {"base"}
    needed = {key for key in table(package, "en") if key.partition(".")[0] in chapters}
    missing = sorted(needed - set(table(package, code)))
    assert not missing, f"minipaged/{package}/words_{code}.py lacks {missing}"


@pytest.mark.parametrize("code", OTHERS)
@pytest.mark.parametrize("package", TABLES)
def test_no_word_without_an_english_one_and_every_number_has_its_place(package, code):
    english = table(package, "en")
    for key, text in table(package, code).items():
        assert key in english, f"{key} is no longer in the English table"
        assert fields(text) == fields(english[key]), key


# --- choosing --------------------------------------------------------------------------------------------------------


def test_what_a_table_lacks_is_said_in_english():
    use_language("zh")
    assert say("00.way.text") == "text"
    assert language.words("minipaged.plots", {"no.such.key": "words"}, "no.such.key") == "words"


@pytest.mark.parametrize("code", ["zh", "ZH", "zh_CN.UTF-8", "zh-Hans"])
def test_the_environment_chooses_too(code, monkeypatch):
    monkeypatch.setenv("MINIPAGED_LANG", code)
    assert language.language() == "zh"
    use_language("en")
    assert language.language() == "en", "the call wins"


@pytest.mark.parametrize("code", ["fr", "", None, "English"])
def test_a_language_that_is_not_there_is_refused_and_nothing_changes(code):
    use_language("zh")
    with pytest.raises(InvalidInputError, match="'en', 'zh'"):
        use_language(code)
    assert language.language() == "zh"


def test_checks_and_guesses_speak_chinese(capsys):
    use_language("zh")
    exercises.guess(..., 20, "次")
    exercises.guess(5, 20, "次")
    assert capsys.readouterr().out.splitlines() == [
        "还没有猜 | 计算结果：20 次",
        "你猜的是 5 次（再想想） | 计算结果：20 次",
    ]
    assert repr(exercises.check_06_which_waste(...)).startswith("… 尚未作答：")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 tokens", "1 token"),
        ("wrote 1 passes and 1 KV heads", "wrote 1 pass and 1 KV head"),
        ("1 rows differ, 1 blocks are free", "1 row differs, 1 block is free"),
        ("1 copies, 1 guesses, 1 axes, 1 new tokens", "1 copy, 1 guess, 1 axis, 1 new token"),
        ("1 of 1 blocks read", "1 of 1 block read"),
        ("1 bytes for each", "1 byte for each"),
        ("1.1 tokens, 11 tokens, 2,1 rows, 1 times", "1.1 tokens, 11 tokens, 2,1 rows, 1 times"),
        ("1 tokenset, 1 token", "1 tokenset, 1 token"),
    ],
)
def test_one_thing_is_said_in_the_singular(text, said):
    assert language.singular(text) == said


def test_words_of_pictures_and_widgets_count_one_thing_in_the_singular():
    from minipaged.widgets.words import say as say_widget

    assert say("13.heads.title", heads=1, ranks=2, each=1) == "1 KV head on 2 GPUs: 1 on each"
    assert say("04.rows.before", n=1) == "1 token"
    assert say_widget("05.advice.length", value=1) == "at most 1 token"


# --- fonts -----------------------------------------------------------------------------------------------------------


def figures():
    """Pictures of chapter 6 with the words of each kind: titles, axes, legends, labels."""
    import minipaged.plots.ch06 as plots
    from minipaged.fragmentation import FirstFit, PowerOfTwo, simulate

    requests = [(6, 2), (1, 7), (6, 2), (1, 7), (8, 4)]
    runs = [simulate(requests, a, 40, steps=12, warmup=0, record=True) for a in (FirstFit(64), PowerOfTwo(64))]
    bars = {"A": dict.fromkeys(plots.PARTS, 20.0), "B": dict.fromkeys(plots.PARTS, 20.0)}
    yield plots.batches([(0, 0, 0, 3)], [(0, 0, 0, 3)])
    yield plots.reservation(6, 10, 15, 22, 32)
    yield plots.pool_now(runs[0].timeline[3], 40)
    yield plots.pool_over_time(runs[1].timeline, 40)
    yield plots.bars_beside_paper(bars, bars)
    yield plots.batched_beside_paper({"A": 1.0, "B": 2.0}, {"A": 1.0, "B": 2.0})
    yield plots.what_if(runs)
    yield plots.padding([3, 7, 2])


def has_chinese(text):
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


def drawn(picture):
    """Every text in a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in picture.figure.findobj(Text)]


def test_chinese_pictures_have_every_glyph(chinese_font):
    use_language("zh")
    for picture in figures():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # matplotlib warns "Glyph 35789 missing from font(s) ..."
            picture.png()
        assert has_chinese(picture.sentence) and any(map(has_chinese, drawn(picture)))


def test_a_font_without_the_glyphs_is_seen_here(chinese_font, monkeypatch):
    """The test above can fail: with DejaVu alone matplotlib does warn."""
    import minipaged.plots.base as base

    monkeypatch.setattr(base, "font_for", lambda code: None)
    use_language("zh")
    with pytest.warns(UserWarning, match="Glyph"):
        next(figures()).png()


def test_without_a_font_pictures_stay_english_and_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(fonts, "CANDIDATES", {"zh": ()})
    for function in (fonts.font_for, fonts.drawable):
        function.cache_clear()
    try:
        use_language("zh")
        for picture in figures():
            picture.png()
            assert not any(map(has_chinese, drawn(picture))) and has_chinese(picture.sentence)
        error = capsys.readouterr().err
        assert error.count("fonts-noto-cjk") == 1 and "stay English" in error
    finally:
        for function in (fonts.font_for, fonts.drawable):
            function.cache_clear()


def test_a_font_installed_after_matplotlib_made_its_list_is_found(chinese_font, monkeypatch):
    from matplotlib import font_manager

    new = {e.fname for e in font_manager.fontManager.ttflist if e.name in fonts.CANDIDATES["zh"]}
    old = [e for e in font_manager.fontManager.ttflist if e.fname not in new]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", old)
    assert fonts._known_font("zh") is None
    assert fonts._new_font("zh") is not None


def test_english_asks_for_no_font_and_no_matplotlib():
    code = "import sys; sys.modules['matplotlib'] = None\nfrom minipaged.plots.words import say; print(say('06.step'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "step\n", done.stderr
