# make run: install and do research with the embedded default. make test: what CI runs. make lint: style and types alone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_DIR ?= .run
EXPERIMENTS ?= 8
BUDGET ?= 15s

.PHONY: install dev run test lint nightly clean

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train]"
	$(BIN)/python -m compileall -q autoresearchd
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,dev]"
	touch $@

run: install
	mkdir -p $(RUN_DIR)
	$(BIN)/autoresearchd start --task autoresearch --dir $(RUN_DIR) --policy search --budget $(BUDGET) \
	  --max-experiments $(EXPERIMENTS) --foreground
	cd $(RUN_DIR) && ../$(BIN)/autoresearchd status && ../$(BIN)/autoresearchd plot -o progress.png
	@echo "The chart: $(RUN_DIR)/progress.png"

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m "not nightly"

nightly: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) $(RUN_DIR) dist .mypy_cache .ruff_cache .pytest_cache
