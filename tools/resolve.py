"""Ask the package index whether requirements.txt resolves on a stranger's machine: `make resolve`.

Works from published metadata alone, for each system and Python that the README promises, without regard to what is
installed here or to this user's own pip settings: a pin that only fits the build on one machine fails here, not there.

usage: python tools/resolve.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = {  # what the README promises -> uv's name for it; torch's macOS wheels need macOS 14 on Apple silicon
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "macOS 14 arm64": "aarch64-apple-darwin",
    "Windows x86-64": "x86_64-pc-windows-msvc",
}
PYTHONS = ["3.11", "3.12", "3.13"]
UV = "uv==0.13.9"


def published(requirements: str) -> str:
    """requirements.txt without the package itself, which is this folder and has no published metadata."""
    return "\n".join(line for line in requirements.splitlines() if not line.startswith("-e "))


def main() -> int:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", UV], check=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    environment["MACOSX_DEPLOYMENT_TARGET"] = "14.0"
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.in"
        wanted.write_text(published((ROOT / "requirements.txt").read_text(encoding="utf-8")), encoding="utf-8")
        for system, platform in SYSTEMS.items():
            for python in PYTHONS:
                command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet", "--no-header",
                           "--only-binary", ":all:", "--python-platform", platform, "--python-version", python,
                           str(wanted), "--output-file", str(Path(folder) / "out.txt")]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                print(f"{system:15} Python {python}: {'resolves' if done.returncode == 0 else 'FAILS'}", flush=True)
                if done.returncode:
                    failed += 1
                    print(done.stderr.strip())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
