# One word for each habit. Each target makes the environment it needs; PYTHON must be 3.11 or newer.
PYTHON ?= python3
# The CPU build of torch that conformance is run with; only conformance ever has it.
TORCH ?= torch==2.13.0
VENV := .venv
CONFORMANCE := .venv-conformance
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: serve test check conformance bench format clean

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

bench: $(CONFORMANCE)/.conformance
	$(CONFORMANCE)/bin/python -m benchmarks.bench $(ARGS)

format: $(VENV)/.dev
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) $(CONFORMANCE) build *.egg-info

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
