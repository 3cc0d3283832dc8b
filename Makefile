# Two commands do everything on a fresh machine:   make demo   make test

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c 'import venv' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin

# Set-up brings a cmake of its own where the machine has none
CMAKE   = $(shell test -x $(BIN)/cmake && echo $(BIN)/cmake || echo cmake)

.PHONY: demo test check bench native sanitize clean

demo: $(VENV)/ready
	@$(BIN)/regard demo

test: $(VENV)/ready check
	$(BIN)/python -m pytest -n auto

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python -m bench maps
	$(BIN)/python -m bench attention
	$(BIN)/python -m bench auto
	$(BIN)/python -m bench scaling

# The kernels after a change: only what changed is compiled. Set-up goes on without kernels that do not compile; this
# does not, and shows why
native: $(VENV)/ready
	$(CMAKE) --build build/native
	$(CMAKE) --install build/native --prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
	@$(BIN)/python -c 'from regard.attention import engine; print(engine.reason); exit(engine.module is None)'

# The kernel tests on a build with the address and undefined-behaviour sanitizers, beside the one in use. The runtimes
# of the sanitizers have to be loaded before Python itself; leaks are not looked for, as Python keeps what it likes to
# the end. Whatever is found stops the run.
SANITIZED := build/sanitize
sanitize: $(VENV)/ready
	$(CMAKE) -S native -B $(SANITIZED) -DREGARD_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build $(SANITIZED) --parallel 2
	REGARD_NATIVE=$$(echo $(CURDIR)/$(SANITIZED)/_native*.so) \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(BIN)/python -m pytest -p no:cacheprovider --capture=sys $(addprefix tests/attention/test_, native.py native_threads.py observe.py engine.py)

# torch first and pinned: a bare requirement would bring another build, gigabytes larger. The kernels are built with
# what is in the environment, so that their build folder stays good from one time to the next.
$(VENV)/ready: pyproject.toml native/CMakeLists.txt $(wildcard native/*.cpp native/*.hpp)
	@test -n "$(PYTHON)" || { echo "regard needs Python 3.11 or later with the venv module: install it, or make PYTHON=…"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet scikit-build-core nanobind $$(command -v cmake >/dev/null || echo cmake)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
