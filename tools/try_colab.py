"""Try notebooks as Google Colab would run them: its versions, a stand-in for its module, an empty folder, a wheel.

usage: python tools/try_colab.py [NOTEBOOK ...] [--python PYTHON] [--folder FOLDER] [--fetch] [--float16]

It builds the wheel, makes an environment with Colab's versions (several GB: its torch is a CUDA build), puts the wheel
and the notebooks alone into an empty folder and runs them there, with no repository around. It fails when a cell
fails, or when the set-up cell changed any package but minipaged and gguf. Cells whose printed text is not the stored
one are listed. Not one of the tests, because of its size: run it when Colab's versions change, or the set-up cell.

    --python    a Python for the environment (Colab's is 3.13)
    --folder    keep the environment there, and use it again
    --fetch     fetch the model anew into an empty cache, as the first visitor of a Colab machine would
    --float16   let "auto" choose float16, as on Colab's T4 (capability 7.5), here on the CPU
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.resolve import UV

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = "2026-08"  # Colab as it was then; minipaged and gguf are not part of it
COLAB = [
    "torch==2.11.0",
    "transformers==5.15.0",
    "numpy==2.1.3",
    "ipywidgets==7.7.1",
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "matplotlib==3.10.0",
    "accelerate",
    "safetensors",
    "pip",
    "requests",
]
BROUGHT = {"minipaged", "gguf"}  # what the set-up cell may add
CHAPTERS = ["01_autoregressive_decoding", "06_fragmentation"]

# What Colab's kernel has done before the first cell; with float16, what `load_model` chooses on a T4.
STARTUP = """\
import google.colab
if {float16}:
    import importlib.abc, importlib.machinery, sys
    class T4(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name != "minipaged.models":
                return None
            self.real = importlib.machinery.PathFinder.find_spec(name, path)
            return importlib.machinery.ModuleSpec(name, self, origin=self.real.origin)
        def exec_module(self, module):
            module.__file__ = self.real.origin
            self.real.loader.exec_module(module)
            import torch
            choose = module.pick_dtype
            module.pick_dtype = lambda dtype="auto", *rest: torch.float16 if dtype == "auto" else choose(dtype, *rest)
    sys.meta_path.insert(0, T4())
"""


def uv(*arguments: str) -> str:
    """uv's answer; its complaint is shown when it fails."""
    command = [sys.executable, "-m", "uv", *arguments]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def make_environment(folder: Path, python: str) -> Path:
    """A Python with Colab's packages and a stand-in for its module; what an earlier trial brought is taken out."""
    binary = folder / "bin" / "python"
    if not binary.exists():
        uv("venv", "--quiet", "--python", python, str(folder))
    uv("pip", "install", "--quiet", "--python", str(binary), *COLAB)
    uv("pip", "uninstall", "--quiet", "--python", str(binary), *sorted(BROUGHT))
    where = [str(binary), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    module = Path(subprocess.run(where, check=True, text=True, capture_output=True).stdout.strip()) / "google" / "colab"
    module.mkdir(parents=True, exist_ok=True)
    (module / "__init__.py").write_text('"""A stand-in."""\n', encoding="utf-8")
    return binary


def packages(binary: Path) -> dict[str, str]:
    """Installed packages and their versions."""
    listed = json.loads(uv("pip", "list", "--python", str(binary), "--format", "json"))
    return {package["name"]: package["version"] for package in listed}


def make_kernel(folder: Path, binary: Path, *, float16: bool, fetch: bool) -> None:
    """A kernel "colab" which runs `binary` as Colab would, found through JUPYTER_PATH."""
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "colab.py").write_text(STARTUP.format(float16=float16), encoding="utf-8")
    quiet = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", "TQDM_DISABLE": "1"}
    environment = {"IPYTHONDIR": str(folder / "ipython"), "MPLBACKEND": "agg", **quiet}
    if fetch:
        environment["MINIPAGED_CACHE"] = str(folder / "models")
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True)
    command = [str(binary), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "colab", "language": "python", "env": environment}
    (kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    os.environ["JUPYTER_PATH"] = str(folder)


def printed(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and answered as text; the address of a live object differs each time."""
    texts = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream" and output.name == "stdout":
            texts.append(output.text)
        elif "text/plain" in output.get("data", {}) and "image/png" not in output.data:
            texts.append(output.data["text/plain"])
    return "".join(texts)


def try_one(path: Path, folder: Path) -> tuple[float, list[str]]:
    """Run a notebook in `folder`; return its seconds and the cells whose text is not the stored one."""
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="colab",
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    client.execute()
    seconds = time.perf_counter() - started
    print(f"  set-up cell: {printed(next(cell for cell in notebook.cells if cell.id == 'setup')).strip()}")
    differing = [
        now.id
        for now, before in zip(notebook.cells, stored.cells, strict=True)
        if now.cell_type == "code" and now.id != "setup" and printed(now) != printed(before)
        and "nbval-ignore-output" not in now.metadata.get("tags", ())
    ]  # fmt: skip
    for cell in notebook.cells:
        if cell.id in differing:
            before = next(old for old in stored.cells if old.id == cell.id)
            print(f"  -- {cell.id}\n     stored: {printed(before)!r:.300}\n     here:   {printed(cell)!r:.300}")
    return seconds, differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--python", default="3.13" if shutil.which("python3.13") else sys.executable)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--fetch", action="store_true")
    parser.add_argument("--float16", action="store_true")
    wanted = parser.parse_args()
    paths = wanted.notebooks or [ROOT / "notebooks" / f"{name}.ipynb" for name in CHAPTERS]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", UV], check=True)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        binary = make_environment(wanted.folder or work / "environment", wanted.python)
        make_kernel(work, binary, float16=wanted.float16, fetch=wanted.fetch)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(work / "empty"), str(ROOT)]
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # what an earlier build left would get into the wheel
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        before = packages(binary)
        for path in paths:
            print(f"{path.name} ...", flush=True)
            try:
                seconds, differing = try_one(path.resolve(), work / "empty")
                print(f"  {seconds:.0f} s; {len(differing)} cells differ from the stored run", flush=True)
            except CellExecutionError as error:
                failed += 1
                print(f"  failed:\n{error}", flush=True)
        after = packages(binary)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    print(f"added or changed: {', '.join(sorted(changed)) or 'nothing'}")
    return 1 if failed or changed - BROUGHT else 0


if __name__ == "__main__":
    sys.exit(main())
