# Two commands:  make lab   opens the course        make test   proves that everything works
# Both set everything up first, may be interrupted and repeated, and use .venv in this folder only.

PYTHON ?= python3
VENV   ?= .venv
PORT   ?= 8888
# Test files run side by side in this many processes; WORKERS=0 runs them one after another, in half the memory.
WORKERS ?= 2
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# JupyterLab refuses to run as root unless told, and looks for a browser that a machine without a screen does not have.
AS_ROOT   := $(if $(filter 0,$(shell id -u)),--allow-root)
NO_SCREEN := $(if $(filter Linux,$(shell uname -s)),$(if $(DISPLAY)$(WAYLAND_DISPLAY),,--no-browser))

# A home that cannot be written (a classroom, a container): Jupyter, pip and the model use a folder in .venv instead.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export HOME := $(abspath $(VENV))/home
endif

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
          --nbval --nbval-current-env --nbval-cell-timeout 120 --nbval-sanitize-with tests/nbval_sanitize.cfg

.PHONY: help lab test setup model notebooks editions wheel badges resolve lint clean
.DELETE_ON_ERROR:

help:
	@echo "make lab        set up, fetch the model, open the course in JupyterLab (PORT=8888)"
	@echo "make test       set up, fetch the model, run every test and every notebook"
	@echo "make notebooks  run all notebooks top to bottom and save their outputs"
	@echo "make editions   list what is stale in the translated notebooks (notebooks/zh)"
	@echo "make wheel      build the package into dist/"
	@echo "make badges     REPO=owner/name: write Colab badges and set-up cells"
	@echo "make resolve    ask the package index whether requirements.txt resolves for Linux, macOS and Windows"
	@echo "make clean      remove .venv and everything built; the fetched model stays"

lab: model
	@echo "Opening the course. Stop it with Ctrl-C."
	@$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb --port $(PORT) $(AS_ROOT) $(NO_SCREEN)

test: model
	@$(PYTEST) tests notebooks

setup: $(READY)

# The stamp is written last: a run that was interrupted is taken up again, a finished one costs nothing.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	  f"error: {sys.executable} is Python {v[0]}.{v[1]}, and the course needs 3.11, 3.12 or 3.13: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || \
	  { echo "error: could not make $(VENV); on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt || \
	  { echo "error: the packages could not be installed (see above); run the same command again to go on from here"; exit 1; }
	@touch $(READY)

model: setup
	@mkdir -p "$(HOME)"
	@$(BIN)/python -m minipaged.models

notebooks: model
	@$(BIN)/python tools/run_notebooks.py

editions: setup
	@$(BIN)/python -m tools.editions

wheel: setup
	@rm -rf build   # what an earlier build left would get into the wheel
	@$(BIN)/python -m build --wheel

badges: setup
	@$(BIN)/python tools/badges.py $(REPO)

resolve: setup
	@$(BIN)/python tools/resolve.py

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
