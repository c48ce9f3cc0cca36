# make demo and make test work on a bare machine with python3.11, python3-venv, g++ and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# VENV=/absolute/folder uses another environment, and installs there what it lacks.
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
STAMP := $(VENV)/.installed
CPP := $(shell find cpp -name '*.cpp' -o -name '*.h')
# Folders too: a file that is removed changes its folder.
SOURCES := $(CPP) $(shell find cpp -type d) setup.py
BUILT := build/.built
# In $(VENV), the command, and the package as it stands here.
INSTALLED := $(BIN)/jit-passes
# The build's lines that count units, "[3/17] ops_1.cpp", and the lines of its other steps.
PROGRESS := s|^\(\[[0-9/]*\]\) .*/\([^ /]*[.]cpp\) .*|\1 \2|p; /^\[[a-z]/p
# Whole models, modules drawn at random, processes of their own: four fifths of the time of all.
SLOW := testing/test_properties training/test_qat_models training/test_qat_training \
  documentation/test_tutorials passes/test_freeze quantize/test_floor cpp/test_cpp \
  documentation/test_qat_recipe report/test_parity passes/test_split_conv_bias third_party/test_third_party \
  command_line/test_errors command_line/test_command_line training/test_lsq_start rewriting/test_custom_ops \
  training/test_slots targets/test_lower_weights profile/test_profile quantizers/test_custom_quantizers \
  x86/program/test_weights training/test_qat_distributed stages/test_ranks test_logs x86/lowering/test_joins \
  x86/lowering/test_fused ops/test_correlation training/test_qat tuning/test_tune tuning/test_sensitivity
# Tests of C++ that reads memory by numbers of its own.
SANITIZED := tests/ops tests/x86
# A copy of the working tree, with a build of its own.
define copy
	mkdir -p $(1)
	find $(1) -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +
	rm -f $(1)/build/.built
	tar -c --exclude './.venv' --exclude './.torch-*' --exclude './.git' --exclude './build' \
	  --exclude './dist' --exclude '*.so' --exclude __pycache__ . | tar -x -C $(1)
endef

export JIT_PASSES_WERROR = 1
export PYTHONPATH = $(CURDIR)
# Bytecode is kept: many processes of tests import the package, and compiling it is a sixth of that.
unexport PYTHONDONTWRITEBYTECODE

# One process for each core; some tests, of one xdist_group, stay together. A test that hangs ends its process, and
# with --dist loadgroup a process that is started anew would hang.
# A thread that waits leaves its core to others: OpenMP reads this when torch is imported, which pytest does as it reads
# its settings, before any file of the tests.
PYTEST = OMP_WAIT_POLICY=passive $(if $(PRELOAD),LD_PRELOAD="$(PRELOAD)") $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 \
  --dist loadgroup --max-worker-restart 0 --durations=30 --durations-min=1 $(TESTS)

.PHONY: help demo build test test-fast soak fuzz asan test-torch lint lint-style lint-types lint-generated stub docs site \
  gallery format bench wheel sdist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## train, quantize, save and reload two small networks
	$(BIN)/python tutorials/demo.py

build: $(INSTALLED) ## compile what changed

test: $(INSTALLED) ## run all tests; TESTS="tests/targets/test_lowering.py -k tanh" runs some
	$(PYTEST)

test-fast: $(INSTALLED) ## run all but the slowest tests
	$(PYTEST) $(SLOW:%=--ignore tests/%.py)

soak: $(INSTALLED) ## call a plan 100,000 times from eight threads of a C++ program
	JIT_PASSES_CALLS=100000 $(PYTEST) -o faulthandler_timeout=0 tests/cpp/test_cpp.py -k threads

fuzz: $(INSTALLED) ## check passes, rules and targets on 20,000 modules drawn at random, and draw all cases of other tests; about an hour
	JIT_PASSES_MODULES=20000 $(PYTEST) -o faulthandler_timeout=0 --numprocesses 0 --capture=no tests/testing/test_properties.py
	JIT_PASSES_SEEDS=all $(PYTEST) -o faulthandler_timeout=0 $$(grep -rl --include "test_*.py" "tests.seeds" tests)

test-torch: ## run the tests with another torch: make test-torch TORCH=2.15.0
	$(call copy,.torch-$(TORCH))
	$(MAKE) -C .torch-$(TORCH) TORCH=$(TORCH) test

# The environment gets the package of this folder first, and not that of the copy.
asan: $(INSTALLED) ## run the tests of operators and plans, and 10,000 bad plans, under AddressSanitizer
	$(call copy,.torch-asan)
	JIT_PASSES_SANITIZE=address JIT_PASSES_MUTATIONS=10000 ASAN_OPTIONS=detect_leaks=0 \
	$(MAKE) -C .torch-asan VENV=$(abspath $(VENV)) TESTS="-o faulthandler_timeout=0 $(SANITIZED)" \
	  PRELOAD="$(shell $(CXX) -print-file-name=libasan.so) $(shell $(CXX) -print-file-name=libstdc++.so)" test

lint: lint-style lint-types lint-generated ## check style, types, stub, tables of documents and imports; change nothing

lint-style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/lint-imports
	$(BIN)/python -m tools.includes

lint-types: $(INSTALLED)
	$(BIN)/mypy
	$(BIN)/stubtest --concise --allowlist tools/stubtest.txt jit_passes._C

lint-generated: $(INSTALLED)
	$(BIN)/python -m tools.stub --check
	$(BIN)/python -m tools.generate_docs --check

stub: $(INSTALLED) ## write jit_passes/_C.pyi anew from the extension
	$(BIN)/python -m tools.stub

docs: $(INSTALLED) ## write the generated tables of the documents anew
	$(BIN)/python -m tools.generate_docs

site: $(STAMP) ## build the documentation site in build/site; a broken link is an error
	$(BIN)/python -m pip install --quiet -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

gallery: $(INSTALLED) ## make the pictures of the documents anew; those of the page need a Chromium
	$(BIN)/python -m tools.log_mel
	$(BIN)/python -m tools.gallery

format: $(STAMP) ## format Python and C++
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

bench: $(INSTALLED) ## install the peers and run the benchmarks; about an hour
	$(BIN)/python -m pip install --quiet -r requirements/benchmarks.txt
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.quantize_time

wheel: $(STAMP) ## put a wheel into dist/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m build --wheel --no-isolation

sdist: $(STAMP) ## put a source archive into dist/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m build --sdist --no-isolation

# The CPU build of torch where the index offers one: its version carries the suffix +cpu.
$(STAMP): requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77" wheel
	$(BIN)/python -m pip install "torch==$(TORCH)+cpu" || $(BIN)/python -m pip install "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	touch $@

$(BUILT): $(STAMP) $(SOURCES)
	@mkdir -p build
	@echo "building the extension; compiler output goes to build/build.log"
	@bash -o pipefail -c 'PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python setup.py --quiet build_py build_ext \
	  --inplace 2>&1 | tee build/build.log | sed -un "$(PROGRESS)"' || { cat build/build.log; exit 1; }
	@touch $@

# It compiles nothing: see `BuildExtension.run` in setup.py.
$(INSTALLED): | $(BUILT)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .

clean: ## remove what was built, but no environment
	rm -rf build dist jit_passes/*.so jit_passes/include jit_passes/lib *.egg-info
