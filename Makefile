# make demo and make test work on a bare machine with python3.11, python3-venv, g++ and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
STAMP := $(VENV)/.installed
SOURCES := $(shell find cpp -name '*.cpp' -o -name '*.h') setup.py
BUILT := build/.built

export JIT_PASSES_WERROR = 1
export PYTHONPATH = $(CURDIR)

.PHONY: demo test lint format bench wheel sdist clean

demo: $(BUILT)
	$(BIN)/python tutorials/demo.py

# One process for each core; some tests, of one xdist_group, stay together.
test: $(BUILT)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup

lint: $(BUILT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(shell find cpp -name '*.cpp' -o -name '*.h')
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(shell find cpp -name '*.cpp' -o -name '*.h')

bench: $(BUILT)
	$(BIN)/python -m pip install --quiet -r requirements/benchmarks.txt
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.quantize_time

wheel: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --wheel --no-isolation

sdist: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --sdist --no-isolation

# The CPU build of torch where the index offers one: its version carries the suffix +cpu.
$(STAMP): requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)+cpu" \
	  || $(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	touch $@

$(BUILT): $(STAMP) $(SOURCES)
	@mkdir -p build
	@echo "building the extension; compiler output goes to build/build.log"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python setup.py --quiet build_py build_ext --inplace \
	  > build/build.log 2>&1 || { cat build/build.log; exit 1; }
	@touch $@

clean:
	rm -rf build dist jit_passes/*.so jit_passes/include *.egg-info
