# Everything a newcomer needs: `make demo` shows the main job, `make test` runs what CI runs.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
# Every install names torch by its exact version, so that no other package can pull a different build.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt "$(TORCH)"
# Another TORCH is installed over the one that is there.
BUILD := $(subst =,,$(TORCH))

.PHONY: help install lint types layers test check demo template reproduce docs clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# What the demo needs.
$(VENV)/.demo-$(BUILD): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.demo-* $(VENV)/.installed-*
	$(INSTALL) -e ".[cli,report]"
	@touch $@

# The rest: tools for tests and documentation.
$(VENV)/.installed-$(BUILD): $(VENV)/.demo-$(BUILD)
	$(INSTALL) -e ".[all,dev,docs]"
	@touch $@

install: $(VENV)/.installed-$(BUILD)  ## make the environment (.venv) with everything in it

lint: install  ## style and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: install  ## strict types on regrow/ and reproduce/, on Linux and on Windows, which lacks much of `os`
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --no-warn-unreachable --cache-dir .mypy_cache/win32

layers: install  ## imports point one way
	$(BIN)/lint-imports --no-cache

test: lint types layers  ## what CI runs: lint, types, layers and the tests
	$(BIN)/python -m pytest -n 2 -m "not slow"

demo: $(VENV)/.demo-$(BUILD)  ## train on digits dense, pruned afterwards and with DPF, and compare (a minute, no download)
	$(BIN)/regrow demo
	@echo "Draw a digit yourself: open docs/_static/draw.html in a browser. A sparse network reads it while you draw."

template: install  ## build the WebAssembly template of `regrow export --to wasm` from the engine's kernels
	$(INSTALL) -e ".[compiler]"
	$(BIN)/python -m regrow.export.wasm_template

reproduce: install  ## list the experiments of the paper; run one with `python -m reproduce ITEM`
	$(BIN)/python -m reproduce

docs: install  ## build the documentation into docs/_build/html, warnings as errors
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

check: test  ## `test` and everything slow, with the frameworks that the examples are for
	$(INSTALL) -e ".[hosts,notebook,compiler,dist]"
	$(BIN)/python -m pytest -n 2 -m slow

clean:  ## remove what was built, not what was measured
	rm -rf $(VENV) build dist docs/_build docs/_generated .mypy_cache .ruff_cache
