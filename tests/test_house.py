"""The house: modules in chapter order, bookkeeping without torch, a public surface that opens lazily."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import nbformat
import pytest

import minipaged

PACKAGE = Path(minipaged.__file__).parent

# A module may import those of its own row and of rows above it, never one below.
CHAPTERS = [
    {"errors", "language"},
    {"models"},  # 0
    {"sampling", "decoding"},  # 1
    {"shapes"},  # 2
    {"attention"},  # 3
    {"kv_cache"},  # 4
    {"kv_configs", "kv_size"},  # 5
    {"fragmentation"},  # 6
    {"block_manager", "paged_cache"},  # 7
    {"paged_attention", "prepacked", "model_runner"},  # 8
    {"triton_kernels", "compile_kernels", "puzzles"},  # 9
    {"scheduler", "engine"},  # 10
    {"sharing", "beam_search"},  # 11
    {"speculative"},  # 12
]
BESIDE = {"__init__", "doctor", "plots", "widgets", "exercises"}
ORDER = {name: row for row, names in enumerate(CHAPTERS) for name in names}
HELPERS = sorted(p for folder in ("plots", "widgets", "exercises") for p in (PACKAGE / folder).glob("ch*.py"))


def imported(path):
    """Names of the minipaged modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "minipaged":
                names = [f"minipaged.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("minipaged."))


def test_every_module_has_a_place():
    for path in PACKAGE.glob("*.py"):
        assert path.stem in ORDER or path.stem in BESIDE, f"{path.name}: add it to CHAPTERS, in reading order"


@pytest.mark.parametrize("name", sorted(name for name in ORDER if (PACKAGE / f"{name}.py").exists()))
def test_a_module_imports_only_earlier_ones(name):
    for other in imported(PACKAGE / f"{name}.py"):
        assert other in ORDER, f"{name} imports {other}"
        assert ORDER[other] <= ORDER[name], f"{name} (chapter row {ORDER[name]}) imports the later {other}"


@pytest.mark.parametrize("path", HELPERS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_pictures_widgets_and_exercises_import_only_earlier_chapters(path):
    chapter = int(path.stem[2:])
    for other in imported(path):
        assert ORDER.get(other, 0) <= chapter + 1, f"{path.name} imports {other}"


def without(*blocked, code):
    """Run code in a fresh Python in which some packages cannot be imported; return what it printed."""
    hide = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in blocked)
    done = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_needs_no_triton_ipywidgets_or_matplotlib():
    modules = [n for n in ORDER if (PACKAGE / f"{n}.py").exists() and n not in ("triton_kernels", "compile_kernels")]
    code = "import minipaged\n" + "\n".join(f"import minipaged.{name}" for name in sorted(modules))
    without("triton", "ipywidgets", "matplotlib", "IPython", code=code)


def test_the_bookkeeping_needs_no_torch():
    present = [n for n in ("fragmentation", "block_manager", "sharing", "kv_size") if (PACKAGE / f"{n}.py").exists()]
    without("torch", "transformers", code="\n".join(f"import minipaged.{name}" for name in present))


def test_a_missing_package_is_named():
    code = (
        "from minipaged.errors import MissingPackageError\n"
        "try:\n    import minipaged.widgets.base\nexcept MissingPackageError as e:\n    print(e)"
    )
    assert without("ipywidgets", code=code) == (
        "a live widget needs ipywidgets, which is not installed here: pip install ipywidgets"
    )


def test_public_names_open_and_none_hides_a_module():
    for name in minipaged.__all__:
        assert getattr(minipaged, name) is not None
        assert importlib.util.find_spec(f"minipaged.{name}") is None or name == "__version__"
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = minipaged.nothing_here


def test_no_file_speaks_of_one_machine():
    """Paths and hosts that only exist where somebody worked must not reach a reader."""
    files = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=PACKAGE.parent)
    if files.returncode:
        pytest.skip("not a git checkout")
    marks = ["/" + "work/", "/" + "root/", "." + "./shared", "files." + "pythonhosted"]
    for name in filter(None, files.stdout.split("\0")):
        path = PACKAGE.parent / name
        if path.suffix not in {".png", ".gif", ".safetensors"} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not [mark for mark in marks if mark in text], name


def test_links_of_the_readme_resolve_and_its_pictures_have_alt_text():
    root = PACKAGE.parent
    text = (root / "README.md").read_text(encoding="utf-8")
    for alt, target in re.findall(r"(!?\[[^\]]*\])\(([^)\s]+)\)", text):
        assert not alt.startswith("![") or len(alt) > 10, target
        if not target.startswith(("http", "#")):
            assert (root / target.partition("#")[0]).exists(), target
    for notebook in (root / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        assert f"(notebooks/{notebook.name})" in text, f"{notebook.name} is not in the chapter table"


def reader_facing():
    """(where, text) of everything a reader reads as prose or as a printed result; program text is left out."""
    root, fence = PACKAGE.parent, re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)
    for path in [*root.glob("*.md"), *root.glob("notebooks/**/[0-9][0-9]_*.ipynb")]:
        if path.suffix == ".md":
            yield path.name, fence.sub("", path.read_text(encoding="utf-8"))
            continue
        for cell in nbformat.read(path, as_version=4).cells:
            where = f"{path.relative_to(root)}: {cell['id']}"
            if cell.cell_type == "markdown":
                yield where, fence.sub("", cell.source)
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                yield where, "\n".join([output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")])
    for folder, name in product(("plots", "widgets", "exercises"), ("words", "words_zh")):
        tree = ast.parse((PACKAGE / folder / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{folder}/{name}.py", node.value


def test_a_per_cent_sign_stands_at_its_number():
    """One style everywhere: 81%, and no space before the sign."""
    for where, text in reader_facing():
        assert not re.findall(r"[^\n]*[\d}][\u0020\u00a0\u202f]%[^\n]*", text), where
