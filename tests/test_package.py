"""The wheel is the whole package: every file is in it, and the notebooks need nothing else of this repository."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
BESIDE = {"tests", "tools", "benchmarks"}  # of the repository, and not of the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of this tree, built without a network by the setuptools that torch brings."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "minipaged", copy / "minipaged", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder that holds what the wheel holds, and an empty one to work in."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder, tmp_path_factory.mktemp("empty")


def run_alone(installed, code, **environment):
    """Run code in a fresh Python with the wheel's content instead of this checkout; return what it printed."""
    folder, empty = installed
    environment = {**os.environ, "PYTHONPATH": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=empty, env=environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace").strip()


def imports_of(notebook):
    """Every import statement of a notebook's cells, as source."""
    cells = [cell.source for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]
    nodes = [node for source in cells for node in ast.walk(ast.parse(source))]
    return [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_from_beside_it(wheel):
    known = subprocess.run(["git", "ls-files", "-z", "minipaged"], capture_output=True, text=True, cwd=ROOT)
    if known.returncode:
        pytest.skip("not a git checkout")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    tree = {name for name in known.stdout.split("\0") if name and (ROOT / name).exists()}
    assert not tree - held, "package-data in pyproject.toml names what is not Python"
    assert {name.split("/")[0] for name in held} == {"minipaged"}


def test_the_imports_of_every_notebook_resolve_with_the_wheel_alone(installed):
    statements = sorted({statement for path in NOTEBOOKS for statement in imports_of(path)})
    assert not [text for text in statements if text.split()[1].split(".")[0] in BESIDE]
    statements = [text for text in statements if text != "import vllm"]  # chapter 13 asks first whether it is there
    code = "import os; os.environ.setdefault('TRITON_INTERPRET', '1')\n" + "\n".join(statements)
    told = run_alone(installed, code + "\nimport minipaged; print(minipaged.__file__)")
    assert told.startswith(str(installed[0])), f"the checkout was imported instead: {told}"


def test_every_module_opens_and_prints_in_the_c_locale(installed):
    """A machine whose locale is not set up reads and writes ASCII; no file here is left to its choice."""
    code = (
        "import importlib, locale, pkgutil, sys, minipaged\n"
        "assert 'utf' not in locale.getpreferredencoding(False).lower()\n"
        "for module in pkgutil.walk_packages(minipaged.__path__, 'minipaged.'):\n"
        "    importlib.import_module(module.name)\n"
        "from minipaged.kv_size import KVCacheSpec\n"
        "from minipaged.plots.base import new_figure\n"
        "from minipaged import doctor, exercises\n"
        "new_figure(3, 2)\n"
        "print(KVCacheSpec.from_config('Llama-2-7B').bytes_per_token())\n"
        "exercises.guess(..., 1)\n"
        "doctor.main()\n"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TRITON_INTERPRET": "1"}
    assert "524288" in run_alone(installed, code, **locale)
