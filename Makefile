# Every target does all that it needs on a fresh clone: virtual environment, install, run.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The editable install is a folder of links, one for each file: it is made again when a file comes, goes or moves.
FILES := $(shell find harness fixtures parity suites reports -type f -not -name "*.pyc" | LC_ALL=C sort | cksum | cut -d" " -f1)
STAMP := $(VENV)/.installed-$(FILES)

# The tests start hundreds of interpreters: without .pyc files, each compiles everyrank again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install docs conformance quick again kill-matrix blind-spots generate faults check bench kills test-models board-trainers board-models board-losses board-scripts clean
.PHONY: test test-stacks test-clusters test-browser test-draws test-packages test-parallel test-all test-parity again-parity

install: $(STAMP)

conformance: $(STAMP)
	BIN=$(BIN)/ ci/conformance.sh build/conformance suites/ -n auto

# Each law and each optimizer once on each subject.
quick: $(STAMP)
	BIN=$(BIN)/ ci/conformance.sh build/quick suites/ -n auto --profile=quick

# No outcome may change from one run to the next.
again: TIMES ?= 20
again: $(STAMP)
	$(BIN)/python ci/again.py $(TIMES) build/again suites/ -n auto

kill-matrix: $(STAMP)
	$(BIN)/everyrank kill-matrix -n auto

# List the rogues that stay green under each ledger; fail if one of them is not listed there, with a reason.
blind-spots: $(STAMP)
	status=0; for ledger in suites/*/*.toml; do $(BIN)/everyrank kill-matrix --ledger $$ledger -n auto || status=1; done; \
	exit $$status

# Drawn sequences alone, on each subject whose contract has a player: about a minute with 30 draws each.
generate: DRAWS ?= 30
generate: $(STAMP)
	$(BIN)/pytest suites/ -n auto --law generate --generate=$(DRAWS)

# Without five groups, but for the smoke tests of each.
test: $(STAMP)
	$(BIN)/pytest tests/ -n auto

# One group whole, or all that there is: see "What runs when" in CONTRIBUTING.md.
test-clusters test-browser test-draws test-packages test-parallel test-all: $(STAMP)
	$(BIN)/pytest tests/ -n auto --group=$(@:test-%=%)

# One file of them: pystack shows no C frames of a rank whose files have a path with a letter outside ASCII.
test-stacks: $(STAMP)
	$(BIN)/pytest tests/harness/test_stacks.py

# Each way to be parallel at each size, and each of its rogues. The kill matrix has a part of them.
test-parity: $(STAMP)
	$(BIN)/everyrank kill-matrix --contract parity --others=all -n auto

# parity says nothing against any honest way to be parallel, in fp64, fp32 and bf16, time after time.
again-parity: TIMES ?= 20
again-parity: $(STAMP)
	$(BIN)/python ci/again.py $(TIMES) build/again-parity --pyargs tests.parity.kill.cases tests/parity/handover tests/parity/reshard -k 'not rogue and not mistake' -n auto

# Published models: their packages are no dependencies of anything here, so they go into an environment of their own.
test-models: $(STAMP)
	$(PYTHON) -m venv build/models
	build/models/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	build/models/bin/pip install --quiet --constraint constraints.txt --group test '.[suites,generate]' transformers accelerate ibm-fms
	build/models/bin/pytest tests/parity/published

# What people train with, on one page. Red cells are what the page is for, so the run's exit status 1 is none of make's.
board-trainers: PROFILE ?= default
board-trainers: $(STAMP)
	$(PYTHON) -m venv build/boards
	build/boards/bin/pip install --quiet --constraint constraints.txt . numpy pytest-xdist -r boards/packages.txt
	mkdir -p build/board
	cd boards && ../build/boards/bin/pytest trainers -n auto --profile=$(PROFILE) --run-file ../build/board/trainers.jsonl \
		|| [ $$? = 1 ]
	build/boards/bin/everyrank board build/board/trainers.jsonl -o build/board/trainers.html --title "Trainers" \
		--markdown build/board/trainers.md

# A row a model type of transformers, a column a way to be parallel. SHARD=1/3 runs a part.
board-models: PROFILE ?= default
board-models: SHARD ?= 1/1
board-models: $(STAMP)
	$(PYTHON) -m venv build/board-models
	build/board-models/bin/pip install --quiet --constraint constraints.txt . numpy pytest-xdist \
		-r boards/models/packages.txt
	mkdir -p build/board
	cd boards && ../build/board-models/bin/pytest models -n auto --profile=$(PROFILE) --shard=$(SHARD) \
		--run-file ../build/board/models.jsonl || [ $$? = 1 ]
	build/board-models/bin/everyrank board build/board/models.jsonl -o build/board/models.html --title "Models" \
		--markdown build/board/models.md

# A row a loss that gathers over ranks, with each option of it.
board-losses: PROFILE ?= default
board-losses: $(STAMP)
	$(PYTHON) -m venv build/board-losses
	build/board-losses/bin/pip install --quiet --constraint constraints.txt . numpy pytest-xdist \
		-r boards/losses/packages.txt
	mkdir -p build/board
	cd boards && ../build/board-losses/bin/pytest losses -n auto --profile=$(PROFILE) \
		--run-file ../build/board/losses.jsonl || [ $$? = 1 ]
	build/board-losses/bin/everyrank board build/board/losses.jsonl -o build/board/losses.html --title "Losses" \
		--markdown build/board/losses.md

# Public example scripts, each with what `everyrank parity` says of it: red if that is another. torchvision's wheel is for
# CUDA: on torch for the CPU its operators do not load, and so cannot be registered.
board-scripts: $(STAMP)
	$(PYTHON) -m venv build/board-scripts
	build/board-scripts/bin/pip install --quiet --constraint constraints.txt . numpy pytest-xdist \
		-r boards/scripts/packages.txt
	sed -i 's/^@torch.library.register_fake/#&/' build/board-scripts/lib/*/site-packages/torchvision/_meta_registrations.py
	cd boards && ../build/board-scripts/bin/pytest scripts -n 1

# The tests must find each of the faults that ci/faults.toml lists, planted one at a time in a copy.
faults: $(STAMP)
	$(BIN)/python -m ci.faults

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p everyrank -p benchmarks -p tests.parity.parallel -p tests.parity.kill
	$(BIN)/python -m ci.sizes
	$(BIN)/mypy tests/samples/laws_that_do_not_fit.py tests/samples/calls_that_do_not_fit.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The site, without the network. A warning is an error.
docs: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going --jobs auto -c docs . build/docs
	@echo build/docs/index.html

# Kill random processes of runs: what each run reports must be true, and nothing may be left.
kills: LAUNCHER ?= fork
kills: KILLS ?= 300
kills: SEED ?= 0
kills: $(STAMP)
	$(BIN)/python -m tests.kills --launcher $(LAUNCHER) --kills $(KILLS) --seed $(SEED)

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	rm -rf build/__editable__*
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev \
		--config-settings editable_mode=strict --editable '.[suites,native,generate,ray]'
	rm -f $(VENV)/.installed*
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info
