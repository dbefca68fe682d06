# The only list of commands: people, .ci/run and CONTRIBUTING all call it. `make` alone prints them.

PYTHON ?= python3
# An index for torch alone, such as https://download.pytorch.org/whl/cpu; empty for the default one.
TORCH_INDEX ?=
# What `make demo` trains, where to, and with which cost profile; empty ones are as the configuration says.
CONFIG ?= examples/demo.toml
RUN ?=
PROFILE ?=
# The run that `make demo` resumes: its folder, or latest; empty for a new run.
RESUME ?=
# How long `make fuzz` runs each of its targets, and over which of them.
SECONDS ?= 60
TARGETS ?= planner documents

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check
RUST := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name '*.toml' -o -name '*.json')
TEST_PROCESSES := 2
# The oldest version of torch that is supported, one between, and the newest that was tested.
VERSIONS ?= 2.11.0 2.13.0 2.15.0
# The environment of other frameworks, and the one of those that install in less than a minute.
PEERS := $(VENV)-peers
LIGHT := $(VENV)-peers-light
SET_UP_PEERS := tools/set_up_peers.sh $(VENV) $(PEERS) tools/peers/requirements.txt tools/peers/frameworks.txt
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# What a nightly compiler's sanitizer flags stand for: the stable one takes the pass by name. With a target named,
# cargo leaves build scripts alone.
COVERAGE := -Cpasses=sancov-module -Ccodegen-units=1 -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares
# The parts that `make first-gpu` runs; empty for all.
PARTS ?=
# How many cases of each property `make soak` draws.
CASES ?= 2000
# The one case that `make faults` runs; empty for all.
CASE ?=
# A text file of lengths whose workloads `make bench` adds; empty for none.
LENGTHS ?=
PLANNERS := hydraulis,search,paper,static-balanced,static-first-fit,static-sorted,buckets,flexible-groups,longest-first,karmarkar-karp
BENCH := target/release
RUN_BENCH := cargo run --release --locked --quiet -p hydraulis-bench --bin
# A comma within an argument of `if`.
COMMA := ,
ON := --profile llama-32b-a800 --gpus 64
DRAWN := $(ON) --lengths lognormal:6.2,1.2,32768 --tokens-per-batch 200000 --seed 0
OWN := $(ON) --lengths $(LENGTHS) --longest 32768

# A name that was given on the command line or in the environment is asked for; a default is not.
asked = $(if $(filter-out file,$(origin $(1))),$($(1)))

# Clippy and rustdoc build the extension too: it must be for this Python, and be the same build each time.
export PYO3_PYTHON := $(BIN)/python
# Else torch leaves an empty folder of that purpose in /tmp.
export TORCHINDUCTOR_CACHE_DIR := $(CURDIR)/target/torchinductor

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak faults versions peers peers-light bench-peers test-gpu first-gpu check bench bench-gpu bench-ddp bench-slow-rank scale simulate-rate check-report errors-page fuzz wheel clean set-up format

help: ## list the commands
	@echo "Usage: make COMMAND [PYTHON=python3.x] [TORCH_INDEX=URL]"
	@echo "The first two are all that a new checkout needs:"
	@awk -F ':.*## ' '/^(demo|test):.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "The others:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / && !/^(demo|test):/ {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: set-up ## train a small model on 4 local CPU ranks (CONFIG=file.toml, RUN=folder, PROFILE=file.json, RESUME=latest)
	@echo "after Ctrl-C, make demo RESUME=latest continues"
	@# So that a signal to this process reaches the command, which ends the ranks.
	@exec $(BIN)/hydraulis train $(CONFIG) --ranks 4 $(if $(RUN),--set 'output.directory="$(RUN)"') \
		$(if $(PROFILE),--set 'planner.profile="$(PROFILE)"') $(if $(RESUME),--resume '$(RESUME)')

test: set-up ## run every test, of Rust and of Python
	cargo test --workspace --locked --no-run
	@mkdir -p target
	@echo "testing Rust first, into target/rust-tests.txt; with Python all of it takes 20 to 30 minutes on 2 cores"
	@cargo test --workspace --locked >target/rust-tests.txt 2>&1 || { cat target/rust-tests.txt; exit 1; }
	@awk '/^test result: / {n += $$4} END {print "Rust:", n, "passed"; exit n == 0}' target/rust-tests.txt
	$(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile --basetemp target/pytest
	@awk '/^test result: / {n += $$4} END {print "and Rust:", n, "passed"}' target/rust-tests.txt

soak: set-up ## run the tests of drawn cases with many more of them (CASES=2000 of each property)
	PROPTEST_CASES=$(CASES) cargo test --workspace --locked
	HYDRAULIS_SOAK=1 $(BIN)/python -m pytest -q tests/runtime/test_worker.py tests/damaged

faults: set-up ## kill and stop ranks in every part of a run, and print what each loss costs (CASE='SIGKILL in forward')
	PYTHONPATH=tests $(BIN)/python -m faults.campaign $(if $(CASE),'$(CASE)')

versions: set-up ## run the tests of model, parallelism and runtime with other versions of torch (VERSIONS='2.11.0 ...')
	@TEST_PROCESSES=$(TEST_PROCESSES) tools/test_versions.sh $(VENV) '$(TORCH_INDEX)' $(VERSIONS)

peers: set-up ## run the sampler, the adapters and examples/peers in other frameworks, in an environment of its own
	@$(SET_UP_PEERS)
	$(PEERS)/bin/python -m pytest -q -W default tests/peers

peers-light: set-up ## run the part of make peers that installs in less than a minute: torchdata, accelerate, transformers, TRL
	@tools/set_up_peers.sh $(VENV) $(LIGHT) tools/peers/light.txt
	$(LIGHT)/bin/python -m pytest -q -W default $(patsubst %,tests/peers/test_%.py,torchdata accelerate transformers_trainer trl_packed)
	$(LIGHT)/bin/python -m pytest -q -W default tests/peers/test_examples.py tests/peers/test_page.py \
	  -k "mean_of_the_step or section or transformers or accelerate or ddp or prompts"

bench-peers: set-up ## compare our batches with those of other frameworks, in the environment of make peers, and write the record
	@$(SET_UP_PEERS)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(PEERS)/bin/python -m benches.peers --record benches/record

test-gpu: set-up ## run the distributed tests over NCCL, and all tests of CUDA; one device is enough for all ranks
	$(BIN)/python -m pytest -q -p no:xdist -W default --timeout 900 -m gpu
	HYDRAULIS_TEST_DEVICE=cuda $(BIN)/python -m pytest -q -p no:xdist -W default --timeout 900 -m devices

# Without the set-up: a machine with a device may have torch, and no network.
first-gpu: ## settle all claims about CUDA on one device in 20 minutes, with a Python that has torch (PYTHON, PARTS)
	@python=$(BIN)/python; "$$python" -c 'import torch' 2>/dev/null || python=$(PYTHON); \
		exec "$$python" -m benches.first_gpu $(if $(PARTS),--only $(PARTS))

check: set-up ## run every check that is no test: formats, lints, types, stub, imports, docs
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- --deny warnings
	RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --locked --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest hydraulis._core
	$(BIN)/lint-imports --no-logo

check-report: set-up ## open a report in a headless browser, if one is there (RUN=folder of a run)
	@PYTHONPATH=tests $(BIN)/python tools/check_report.py $(RUN)

errors-page: set-up ## write docs/errors.md from the error codes of the core and of the Python package
	@$(BIN)/python tools/write_errors_page.py

format: set-up ## write Rust and Python in their one format
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix
	$(BIN)/ruff format --quiet

bench: set-up ## measure the planner and benches/, and write one record with the machine's load (LENGTHS=file adds its workloads)
	cargo build --release --locked --quiet -p hydraulis-bench
	$(BIN)/python -m benches.figures --record benches/record \
	  "$(BENCH)/plan-bench $(DRAWN) --planner $(PLANNERS)" \
	  "$(BENCH)/plan-bench $(DRAWN) --planner search,hydraulis,paper --link 200" \
	  $(if $(LENGTHS),"$(BENCH)/plan-bench $(OWN) --tokens-per-batch 200000 --planner $(PLANNERS)") \
	  $(if $(LENGTHS),"$(BENCH)/plan-bench $(OWN) --tokens-per-batch 500000 --planner search$(COMMA)hydraulis$(COMMA)paper") \
	  "$(BENCH)/strategy-bench exhaustive $(if $(LENGTHS),--lengths $(LENGTHS))" \
	  "$(BENCH)/strategy-bench propose $(DRAWN)" \
	  $(if $(LENGTHS),"$(BENCH)/strategy-bench propose $(OWN) --tokens-per-batch 200000") \
	  "$(BENCH)/strategy-bench lookahead $(DRAWN) --count 48 --lookaheads 8 --max-delay 0,3" \
	  $(if $(LENGTHS),"$(BENCH)/strategy-bench lookahead $(OWN) --tokens-per-batch 200000 --count 48 --lookaheads 8 --max-delay 0$(COMMA)3") \
	  "$(BIN)/python benches/balancing.py" \
	  "$(BIN)/python benches/packing.py" \
	  "$(BIN)/python benches/indexing.py" \
	  "$(BIN)/python benches/scale.py --sequences-per-rank 1"

bench-gpu: set-up ## measure attention, training steps and predictions on one GPU, and write the record
	$(BIN)/python -m benches.gpu --record

bench-ddp: set-up ## compare with plain data parallelism on two CPU ranks
	$(BIN)/python -m benches.ddp

bench-slow-rank: set-up ## compare plans with and without the rate of a slow rank, on four CPU ranks
	$(BIN)/python -m benches.slow_rank

scale: ## measure how planning time grows from 64 to 16,384 GPUs
	$(RUN_BENCH) plan-scale

simulate-rate: ## measure how many instructions a second are simulated
	$(RUN_BENCH) simulate-rate

fuzz: ## look for inputs that break a promise (SECONDS=60 a target, TARGETS='planner documents')
	RUSTFLAGS='$(COVERAGE)' cargo build --locked --quiet --profile fuzz --target $(HOST) --target-dir target/fuzz \
		-p hydraulis-fuzz --features libfuzzer
	@mkdir -p target/fuzz/found $(TARGETS:%=target/fuzz/corpus/%)
	set -e; for target in $(TARGETS); do target/fuzz/$(HOST)/fuzz/fuzz-$$target target/fuzz/corpus/$$target \
		-max_total_time=$(SECONDS) -max_len=1200 -len_control=0 -timeout=20 -artifact_prefix=target/fuzz/found/$$target- \
		-print_final_stats=1 -verbosity=0; done

wheel: set-up ## build a release wheel into dist/
	$(BIN)/maturin build --release --locked --out dist

clean: ## remove everything that was built, the virtual environment too
	rm -rf .venv .venv-* target dist python/hydraulis/_core*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find python tests -name __pycache__ -prune -exec rm -rf {} +

# The script may remove the environment, and make looks at a file only once: hence make again.
set-up:
	@tools/set_up.sh $(VENV) '$(call asked,PYTHON)' '$(and $(filter-out file,$(origin TORCH_INDEX)),$(or $(TORCH_INDEX),default))'
	@$(MAKE) --no-print-directory --silent $(VENV)/installed

# Run again after a change in Rust, pip finds every dependency in place and asks no index. maturin comes first,
# and the build is not isolated: so it is the pinned one, and building again needs no network.
$(VENV)/installed: pyproject.toml constraints.txt $(RUST)
	@echo "installing into $(VENV): torch is by far the largest part, TORCH_INDEX names a smaller one"
	@# Once torch is there, the file says where from; an index that failed is not asked again.
	@index=$$(cat $(VENV)/torch-index); index=$${index#asked }; \
		if [ -n "$$index" ] && ! $(PIP) install --index-url "$$index" torch; then \
			echo "hydraulis: torch could not be installed from $$index: see pip's first message above; without TORCH_INDEX it is PyPI's" >&2; \
			exit 1; \
		fi && echo "$$index" >$(VENV)/torch-index
	@$(PIP) install maturin
	@echo "compiling the planner (Rust), and fetching what else there is: some minutes"
	@PATH="$(BIN):$$PATH" $(PIP) install --no-build-isolation --editable '.[train,data,report,optimizers,track,dev]'
	@# Tests read the chat templates in TRL's files; its dependencies are many large packages.
	@$(PIP) install --no-deps trl==1.16.0
	@touch $@
