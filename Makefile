# One word for each habit. Each target makes the environment it needs; PYTHON must be 3.11 or newer.
PYTHON ?= python3
# The CPU build of torch that conformance and exports by optimum are tested with; nothing else ever has it.
TORCH ?= torch==2.13.0
VENV := .venv
CONFORMANCE := .venv-conformance
# Apart from that one: optimum takes older transformers, tokenizers and huggingface_hub.
OPTIMUM := .venv-optimum
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: serve test check conformance test-optimum bench format clean

serve: $(VENV)/.cpu
	$(VENV)/bin/ffwd-server --demo $(ARGS)

test: $(VENV)/.test
	$(VENV)/bin/python -m pytest $(ARGS)

check: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

conformance: $(CONFORMANCE)/.conformance
	$(CONFORMANCE)/bin/python -m pytest conformance $(ARGS)

# Besides the exports, what leans on the older libraries.
test-optimum: $(OPTIMUM)/.optimum
	$(OPTIMUM)/bin/python -m pytest tests/optimum tests/test_sources.py tests/test_vocabularies.py $(ARGS)

bench: $(CONFORMANCE)/.conformance
	$(CONFORMANCE)/bin/python -m benchmarks.bench $(ARGS)

format: $(VENV)/.dev
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) $(CONFORMANCE) $(OPTIMUM) build *.egg-info

$(VENV)/.cpu: setup.cfg pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu]'
	touch $@

$(VENV)/.test: $(VENV)/.cpu
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,test]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(VENV)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,test,dev]'
	touch $@

$(CONFORMANCE)/.conformance: setup.cfg pyproject.toml
	test -x $(CONFORMANCE)/bin/python || $(PYTHON) -m venv $(CONFORMANCE)
	$(CONFORMANCE)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	$(CONFORMANCE)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,test,conformance]'
	touch $@

$(OPTIMUM)/.optimum: setup.cfg pyproject.toml
	test -x $(OPTIMUM)/bin/python || $(PYTHON) -m venv $(OPTIMUM)
	$(OPTIMUM)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	$(OPTIMUM)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,test,optimum]'
	touch $@
