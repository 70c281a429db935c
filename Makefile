# `make demo` and `make test` create .venv. `make help` lists all targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*/*.h native/*/*.cpp)
CHECKED := fastload tools benchmarks examples tests

.PHONY: help demo test test-pure lint format types unit docs bench peers wheel sanitize fuzz clean
help:            ## list these targets
	@grep -Eh '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

# Rebuilt only when an input of the build is newer. Python files need no rebuild (editable install).
$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	sh tools/libjpeg_headers.sh
	$(PIP) install -c constraints.txt -e .
	touch $@

# For the checks: linters, and the libraries that fastload is tested with (DALI and nvImageCodec on
# the CPU, training frameworks).
$(VENV)/.checks: $(VENV)/.installed
	sh tools/jpeg_tools.sh
	sh tools/chromium.sh
	$(PIP) install packaging
	$(BIN)/python tools/extras.py dev test > $@.txt
	$(PIP) install -c constraints.txt -r $@.txt
	touch $@

demo: $(VENV)/.installed   ## run every command on generated data, in ./demo
	$(BIN)/fastload demo --dest demo

test: lint types docs unit ## lint, types, documentation, tests

lint: $(VENV)/.checks   ## formatting, ruff's rules, import layers
	$(BIN)/ruff format --check -q $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/lint-imports --no-logo --no-cache
	git ls-files 'native/*.h' 'native/*.cpp' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.checks ## format Python and C++ in place
	$(BIN)/ruff format $(CHECKED)
	git ls-files 'native/*.h' 'native/*.cpp' | xargs $(BIN)/clang-format -i

types: $(VENV)/.checks  ## mypy --strict, and the type stubs of the native core
	$(BIN)/mypy
	$(BIN)/python tools/check_core_types.py

unit: $(VENV)/.checks   ## pytest, on all cores
	$(BIN)/python -m pytest -q -n logical --dist worksteal

docs: $(VENV)/.checks      ## build the documentation in build/site and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

test-pure:                 ## install without a compiler and run the tests that apply
	sh tools/test_pure.sh $(VENV)

bench: $(VENV)/.installed  ## measure decoding on this machine
	$(PIP) install -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.decode

peers: $(VENV)/.installed  ## compare with other loaders, in a separate venv (15 minutes)
	$(BIN)/python -m benchmarks.peers.setup .venv-peers
	.venv-peers/bin/python -m benchmarks.peers --json benchmarks/results/peers.json

wheel: $(VENV)/.checks  ## build a self-contained wheel in dist/ and test it in an empty venv
	sh tools/make_wheel.sh $(VENV)

sanitize: $(VENV)/.checks  ## run the core under AddressSanitizer, UBSan and ThreadSanitizer
	$(BIN)/python -m tools.sanitize

SECONDS ?= 600
fuzz: $(VENV)/.checks      ## fuzz every parser of untrusted bytes for SECONDS=600
	sh tools/fuzz_tools.sh
	$(PIP) install -c constraints.txt atheris
	$(BIN)/python -m tools.fuzz $(SECONDS)

clean:                     ## remove everything that the other targets created
	rm -rf $(VENV) .venv-pure .venv-peers build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
