"""The claims ledger of chapter 13: 29 rows, each with a verdict, and no result that somebody typed in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from minipaged.plots.ch13 import VERDICTS

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "13_from_minipaged_to_vllm.ipynb"
DRESSING = {"round", "float", "int", "abs", "str", "format", "repr", "Fraction"}
ROWS = [f"S{number}" for number in range(1, 30)]
WRITTEN_OUT = re.compile(
    r"\b(zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred|thousand)\b", re.I
)


# ---------------------------------------------------------------- the rules


def code_of(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name:
            yield node


def rows_of(tree: ast.AST) -> list[ast.Call]:
    return [call for call in calls(tree, "add") if ast.unparse(call.func) == "ledger.add"]


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _computes(value: ast.AST) -> bool:
    """Whether a value is more than a typed one in another dress, such as round(x)."""
    return any(isinstance(n, ast.Call) and ast.unparse(n.func) not in DRESSING for n in ast.walk(value))


def is_typed(value: ast.AST) -> bool:
    """Whether an expression is made of constants alone: nothing was computed by a call, nothing named."""
    return not any(isinstance(n, ast.Name | ast.Call | ast.Attribute) for n in ast.walk(value))


def typed_names(tree: ast.AST) -> set[str]:
    """Names that only ever hold what was typed."""
    values: dict[str, list[bool]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for one, value in pairs:
                    for name in names_in(one):
                        values.setdefault(name, []).append(is_typed(value))
    return {name for name, typed in values.items() if all(typed)}


def problems(code: str) -> list[str]:
    """What is typed in where something computed should stand."""
    tree = ast.parse(code)
    typed = typed_names(tree)
    found = []
    for call in calls(tree, "published"):
        if len(call.args) != 2 or not (isinstance(call.args[1], ast.Constant) and len(str(call.args[1].value)) > 5):
            found.append(f"{ast.unparse(call)}: a published number needs its source")
    for call in rows_of(tree):
        number = ast.literal_eval(call.args[0])
        fields = {keyword.arg: keyword.value for keyword in call.keywords}
        found += [f"{number}: {problem}" for problem in _result_problems(fields["result"], typed)]
        for name in ("holds", "under"):
            if name in fields and not names_in(fields[name]) - typed:
                found.append(f"{number}: {name} is {ast.unparse(fields[name])}: nothing computed decides it")
    return found


def _result_problems(result: ast.AST, typed: set[str]) -> Iterator[str]:
    texts, values = [], []
    formats = {
        id(n) for f in ast.walk(result) if isinstance(f, ast.FormattedValue) for n in ast.walk(f.format_spec or f)
    }
    for node in ast.walk(result):
        if isinstance(node, ast.FormattedValue):
            values.append(node.value)
            formats -= {id(n) for n in ast.walk(node.value)}
    for node in ast.walk(result):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in formats:
            texts.append(node.value)
    if not any(names_in(value) for value in values) and not (isinstance(result, ast.Call) and names_in(result)):
        yield "nothing computed is in the result"
    for text in texts:
        if re.search(r"\d", text) or WRITTEN_OUT.search(text):
            yield f"the result has a number typed in: {text!r}"
    for value in values:
        if names_in(value) and names_in(value) <= typed | DRESSING and not _computes(value):
            yield f"the result shows {ast.unparse(value)}, which was typed"
        if is_typed(value):
            yield f"the result shows {ast.unparse(value)}, which is typed"


# ---------------------------------------------------------------- the notebook


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_no_result_and_no_verdict_is_typed_in(notebook):
    assert problems(code_of(notebook)) == []


def test_every_claim_has_one_row_and_a_chapter(notebook):
    rows = rows_of(ast.parse(code_of(notebook)))
    assert sorted((ast.literal_eval(row.args[0]) for row in rows), key=ROWS.index) == ROWS
    for row in rows:
        claim, chapter = (ast.literal_eval(argument) for argument in row.args[1:3])
        assert len(claim) > 20 and 1 <= chapter <= 12


def test_the_stored_table_has_29_rows_with_verdicts(notebook):
    (cell,) = [cell for cell in notebook.cells if cell["id"] == "ledger-all"]
    html = cell.outputs[0]["data"]["text/html"]
    assert html.count('<th scope="row">') == len(ROWS) and html.count('<th scope="col"') == 6
    assert sorted(re.findall(r'<th scope="row">(S\d+)</th>', html), key=ROWS.index) == ROWS
    verdicts = re.findall(r"<b>(.*?)</b>", html)
    assert len(verdicts) == len(ROWS) and set(verdicts) == set(VERDICTS)


# ---------------------------------------------------------------- the rules themselves

GOOD = 'x = f(1)\nledger.add("S1", "c", 1, check="c", result=f"{x:.1f} of it", holds=x > 3)'


@pytest.mark.parametrize(
    ("change", "to", "problem"),
    [
        ('f"{x:.1f} of it"', '"half of it"', "nothing computed"),
        ('f"{x:.1f} of it"', 'f"{x:.1f} of 9"', "typed in"),
        ('f"{x:.1f} of it"', 'f"{x:.1f} of nine"', "typed in"),
        ('f"{x:.1f} of it"', 'f"{x}, {4.3:.1f}"', "which is typed"),
        ("x = f(1)", "x = 4.3", "which was typed"),
        ("x = f(1)", "x = 43 / 10", "which was typed"),
        (
            'x = f(1)\nledger.add("S1", "c", 1, check="c", result=f"{x:.1f}',
            'x = 4.3\nledger.add("S1", "c", 1, check="c", result=f"{round(x):.1f}',
            "which was typed",
        ),
        ("holds=x > 3", "holds=True", "nothing computed decides"),
        ("holds=x > 3", "holds=x > 3, under=1 > 0", "nothing computed decides"),
        ("x = f(1)", 'x = published(4.3, "")', "needs its source"),
        ("x = f(1)", "x = published(4.3)", "needs its source"),
    ],
)
def test_what_is_typed_in_is_found(change, to, problem):
    assert problems(GOOD) == []
    assert change in GOOD
    assert problem in " ".join(problems(GOOD.replace(change, to)))


def test_a_published_number_with_its_source_is_fine():
    assert problems(GOOD.replace("x = f(1)", 'x = published(4.3, "paper, figure 13")')) == []
