"""Every notebook keeps the contract that the course promises its readers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest

from minipaged import exercises
from tools.badges import notebooks, repository, setup_cell

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = dict(notebooks(ROOT))
NOTEBOOKS = [path for path, language in LANGUAGES.items() if language == "en"]
LONGEST_CELL = 18  # non-blank lines: what fits a screen

# What the parts of a chapter are called.
WORDS = {
    "en": {
        "card": ("**You will be able to", "**Needs**", "**Time**", "**Machine**"),
        "headings": ("## Summary", "## Exercises", "## References"),
        "predict": "**Predict first.**",
        "bug": "find the bug",
        "difficulty": r"difficulty [1-5] of 5, \d+ minutes",
        "hint": "<summary>Hint",
        "solution": "<summary>Solution",
        "stub": "not attempted",
    },
    "zh": {
        "card": ("**学完之后，你能**", "**需要**", "**时间**", "**机器**"),
        "headings": ("## 小结", "## 练习", "## 参考文献"),
        "predict": "**先猜一猜。**",
        "bug": "找出 bug",
        "difficulty": r"难度 [1-5]/5，\d+ 分钟",
        "hint": "<summary>提示",
        "solution": "<summary>答案",
        "stub": "尚未作答",
    },
}

pytestmark = pytest.mark.parametrize(
    "path", LANGUAGES, ids=[path.relative_to(ROOT / "notebooks").with_suffix("").as_posix() for path in LANGUAGES]
)


def words(path):
    return WORDS[LANGUAGES[path]]


def cells(path, kind=None):
    return [cell for cell in nbformat.read(path, as_version=4).cells if kind in (None, cell.cell_type)]


def markdown(path):
    return "\n\n".join(cell.source for cell in cells(path, "markdown"))


def test_the_file_is_a_valid_notebook_without_widget_state(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"


def test_outputs_come_from_one_run_top_to_bottom(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert not [output for output in cell.outputs if output.output_type == "error"], cell["id"]


def test_cell_ids_are_meaningful_and_unique(path):
    ids = [cell["id"] for cell in cells(path)]
    assert len(set(ids)) == len(ids)
    for name in ids:
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) and not re.fullmatch(r"[0-9a-f]{8}", name), name


def test_the_card_says_what_who_and_how_long(path):
    card = cells(path)[0]
    assert card["id"] == "card" and card.source.startswith(f"# {path.stem[:2]} · ")
    for part in words(path)["card"]:
        assert part in card.source, part
    number = [english.name for english in NOTEBOOKS].index(path.name)
    for neighbour in NOTEBOOKS[max(0, number - 1) : number] + NOTEBOOKS[number + 1 : number + 2]:
        assert re.search(rf"\((\.\./)?{neighbour.name}\)", card.source), f"no link to {neighbour.name}"


def test_the_setup_cell_is_the_shared_one(path):
    first = cells(path, "code")[0]
    repo = repository((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert first["id"] == "setup" and first.source == setup_cell(repo, LANGUAGES[path])


def test_code_cells_fit_a_screen_and_install_nothing(path):
    for cell in cells(path, "code"):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= LONGEST_CELL, f"{cell['id']} has {len(lines)} lines"
        assert max(map(len, lines)) <= 120, cell["id"]
        for line in lines:
            assert not re.match(r"\s*(%%capture|%pip|!)", line), f"{cell['id']}: {line}"
        ast.parse(cell.source)


def test_the_chapter_has_its_parts(path):
    text = markdown(path)
    for heading in words(path)["headings"]:
        assert heading in text, heading
    assert text.count(words(path)["predict"]) >= 2
    assert words(path)["bug"] in text.lower() or path.stem.startswith("00")
    code = "\n".join(cell.source for cell in cells(path, "code"))
    assert f"minipaged.widgets.ch{path.stem[:2]}" in code, "no live widget"
    assert f"minipaged.plots.ch{path.stem[:2]}" in code, "no picture"


def test_stored_outputs_hold_pictures_that_are_not_widgets(path):
    pictures = [c for c in cells(path, "code") for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) >= 2


def test_most_cells_compare_something(path):
    """A cell without output passes nbval silently: enough of them must print what they prove."""
    code = cells(path, "code")
    compared = [c for c in code if c.outputs and "nbval-ignore-output" not in c.metadata.get("tags", [])]
    assert len(compared) >= 0.5 * len(code), f"{len(compared)} of {len(code)}"


def test_links_resolve_and_images_have_alt_text(path):
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", markdown(path)):
        assert alt.strip(), f"no alt text: {target}"
    for target in re.findall(r"\]\(([^)\s]+)\)", markdown(path)):
        if not re.match(r"(https?|attachment):|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), target
    assert "<img" not in markdown(path).lower()


def test_folded_text_is_closed(path):
    for cell in cells(path, "markdown"):
        assert cell.source.count("<details>") == cell.source.count("</details>"), cell["id"]
        assert cell.source.count("<details>") == cell.source.count("<summary>"), cell["id"]


def exercise_cells(path):
    """(title cell, stub cell, solution cell) of each exercise; ids exercise-NAME, exercise-NAME-yours, ...-solution."""
    by_id = {cell["id"]: cell for cell in cells(path)}
    for name in [n.removesuffix("-yours") for n in by_id if n.startswith("exercise-") and n.endswith("-yours")]:
        yield by_id[name], by_id[f"{name}-yours"], by_id[f"{name}-solution"]


def the_check(stub):
    """The last expression of a stub cell: a call of one check with one argument."""
    call = ast.parse(stub.source).body[-1].value
    assert isinstance(call, ast.Call) and call.func.attr.startswith("check_"), stub["id"]
    return call.func.attr, ast.unparse(call.args[0])


def test_exercises_are_complete(path):
    found = list(exercise_cells(path))
    assert len(found) >= (1 if path.stem.startswith("00") else 2)
    for title, stub, solution in found:
        assert re.search(words(path)["difficulty"], title.source), title["id"]
        assert words(path)["hint"] in title.source, title["id"]
        assert "..." in stub.source and words(path)["solution"] in solution.source, stub["id"]
        assert words(path)["stub"] in str(stub.outputs), stub["id"]
        assert the_check(stub)[0].startswith(f"check_{path.stem[:2]}_"), stub["id"]


def solutions(path):
    """(name of the check, the folded solution's answer) of each exercise."""
    for _, stub, solution in exercise_cells(path):
        code = "\n".join(re.findall(r"```python\n(.*?)```", solution.source, re.S))
        name, answer = the_check(stub)
        namespace = {}
        exec(compile(code, name, "exec", dont_inherit=True), namespace)  # annotations as in a notebook: evaluated
        yield name, eval(answer, namespace)


def test_solutions_pass_the_check_that_readers_use(path):
    for name, answer in solutions(path):
        result = getattr(exercises, name)(answer)
        assert result.status == "right", f"{name}: {result.message}"
