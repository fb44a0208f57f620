# make demo   the whole loop in a minute: a blocked agent, a click, the agent goes on (AUTO=1: nobody clicks)
# make up     start everything (makes its own virtual environment)
# make test   lint, types and all tests that this machine can run
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
REAL   := process or browser or services or clients or docker or tools

# pytest keeps the tests it has rewritten only where bytecode may be kept: a third of the fast loop.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up demo test unit soak lint types clients bench screenshots clean
.DEFAULT_GOAL := up

$(VENV)/.runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bot-bottle needs Python 3.11 or newer; set PYTHON=…"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

up: $(VENV)/.runtime
	@exec $(BIN)/python manage.py up

demo: $(VENV)/.runtime
	@exec $(BIN)/python manage.py demo $(if $(AUTO),--auto)

# Whole files side by side, more of them than there are cores, as those with real programs wait more than they
# work. They begin in the order of tests/conftest.py. Their place is short, because the paths of sockets must be.
test: lint types
	@place=$$(mktemp -d /tmp/b.XXXX) && trap 'rm -rf "$$place"' EXIT && \
	$(BIN)/python -m pytest -q -n 6 --dist=loadfile --no-loadscope-reorder --basetemp="$$place" -p tests.support.time_table

# Everything that starts no program of its own: the fast loop. One worker more than cores, as some tests wait.
unit: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n $$(expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxschedchunk=20 -m "not ($(REAL))" -p tests.support.time_table

# The property tests, with fifty times as many examples as in `make test`.
soak: $(VENV)/.dev
	@BOTTLE_SOAK=1 $(BIN)/python -m pytest -q -n auto -m fuzz

lint: $(VENV)/.dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache --no-logo >/dev/null || $(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && \
	BOTTLE_TEST_HOME="$$home" $(BIN)/mypy --no-error-summary botbottle supervise egress manage.py

# The programs that tests run: MCP clients, the conformance suite, Node's HTTP and WebSocket clients, smolvm.
# `make -j4 clients` installs them side by side.
INSTALLS := tests/clients/install tests/tools/install tests/botbottle/backends/install tests/botbottle/mcp_servers/npm/install
clients: $(INSTALLS:%=run-%)
$(INSTALLS:%=run-%): run-%: $(VENV)/.dev
	@$*

screenshots: $(VENV)/.dev
	@$(BIN)/python -m tests.support.screenshots

# All of them, also after one that misses a bar.
bench: $(VENV)/.dev
	@missed=0; for part in wake egress reload launch scale; do $(BIN)/python bench/$$part.py || missed=1; done; exit $$missed

clean:
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
