# One word for each habit. Each target makes the environment it needs; PYTHON must be 3.11 or newer.
PYTHON ?= python3
# The CPU build of torch that conformance and exports by optimum are tested with; nothing else ever has it.
TORCH ?= torch==2.13.0
VENV := .venv
CONFORMANCE := .venv-conformance
# Apart from that one: optimum takes older transformers, tokenizers and huggingface_hub.
OPTIMUM := .venv-optimum
# What `make bench-peers` measures beside us, in three environments: their requirements exclude one another.
PEERS := .venv-peers
LLAMA ?= llama-cpp-python==0.3.36
INFINITY ?= infinity-emb[torch,optimum]==0.0.78
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: serve test check conformance test-optimum bench bench-peers format clean

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

# A quarter of an hour on two cores, and the first run compiles llama.cpp before (9 minutes of CPU time). What cannot be
# installed is left out of the table, by name and with the reason. For a short look: ARGS='--only fastembed'.
bench-peers: $(PEERS)/.peers $(PEERS)/.llama $(PEERS)-optimum/.peers $(PEERS)-infinity/.peers
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

format: $(VENV)/.dev
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) $(CONFORMANCE) $(OPTIMUM) $(PEERS) $(PEERS)-optimum $(PEERS)-infinity build *.egg-info

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

$(PEERS)/.peers: setup.cfg pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	$(PEERS)/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,peers]'
	touch $@

# Its source stays: the converter to GGUF is not in the package that it installs.
$(PEERS)/.llama: $(PEERS)/.peers
	-test -d $(PEERS)/src || { mkdir $(PEERS)/src && \
	  $(PEERS)/bin/python -m pip download $(PIP_FLAGS) --no-deps --no-binary llama-cpp-python -d $(PEERS)/src '$(LLAMA)' && \
	  tar -xzf $(PEERS)/src/*.tar.gz -C $(PEERS)/src; }
	-$(PEERS)/bin/python -m pip show --quiet llama-cpp-python || \
	  nice -n 19 $(PEERS)/bin/python -m pip install $(PIP_FLAGS) $(PEERS)/src/llama_cpp_python-*/
	touch $@

$(PEERS)-optimum/.peers: setup.cfg pyproject.toml
	-test -x $(PEERS)-optimum/bin/python || $(PYTHON) -m venv $(PEERS)-optimum
	-$(PEERS)-optimum/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	-$(PEERS)-optimum/bin/python -m pip install $(PIP_FLAGS) -e '.[cpu,optimum]' 'sentence-transformers >= 5.1'
	touch $@

$(PEERS)-infinity/.peers:
	-test -x $(PEERS)-infinity/bin/python || $(PYTHON) -m venv $(PEERS)-infinity
	-$(PEERS)-infinity/bin/python -m pip install $(PIP_FLAGS) '$(TORCH)'
	-$(PEERS)-infinity/bin/python -m pip install $(PIP_FLAGS) '$(INFINITY)'
	touch $@
