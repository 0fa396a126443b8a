# What a person types; everything behind it is Cargo's.

.DEFAULT_GOAL := help

# What the lab's parts are built with, and where to get it.
define need_toolchains
@command -v cargo >/dev/null || { echo "everything here is built with Rust, and there is no cargo on PATH: install Rust (https://rustup.rs)" >&2; exit 1; }
@command -v cc >/dev/null || { echo "the lab needs a C compiler for Rust to link with, and there is no cc on PATH: install gcc or clang" >&2; exit 1; }
@command -v go >/dev/null || { echo "the lab builds its parts with Go, and there is no go on PATH: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }
endef

.PHONY: help
help: ## list what can be made
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: demo
demo: ## watch two GPU nodes go through host maintenance (a minute; KEEP=1 stays up with a tracing UI, RELEASE=1 takes the release build)
	$(need_toolchains)
	@cargo run -p haulout-lab --bin lab -- demo

.PHONY: lab
lab: ## build the lab's parts into the cache (about 5 minutes the first time, nothing afterwards)
	$(need_toolchains)
	@cargo run -p haulout-lab --bin lab -- build
	@echo "start it with: cargo run -p haulout-lab --bin lab -- up"

.PHONY: chart
chart: ## write chart/README.md anew from the chart's values
	$(need_toolchains)
	@cargo run --quiet --locked -p haulout-lab --bin lab -- build | sed -n 's/^helm: //p' | { read tools; "$$tools/helm-docs" --chart-search-root chart; }

GO_VCENTER := tests/lab/go/vcenter

.PHONY: docs
docs: ## write docs/reference anew from the program
	HAULOUT_WRITE_REFERENCE=1 cargo test --quiet --locked --test reference

.PHONY: check
check: ## formatting, clippy and go vet
	$(need_toolchains)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cd $(GO_VCENTER) && go vet ./...

STATIC := $(shell uname -m)-unknown-linux-musl
IMAGE_PROGRAM := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/$(STATIC)/release/haulout

.PHONY: image
image: ## build the static release program as the Dockerfile does (10 minutes), and test the image around it
	$(need_toolchains)
	rustup target add $(STATIC)
	CC_$(subst -,_,$(STATIC))=gcc cargo build --release --locked --target $(STATIC) --bin haulout
	HAULOUT_IMAGE_PROGRAM=$(IMAGE_PROGRAM) cargo test --locked --test image -- --nocapture

# Scenarios mostly wait, so more of them run at once than there are cores.
.PHONY: test
test: export RUST_TEST_THREADS ?= 8
test: export RUST_BACKTRACE = 0
# Tests add to it what they skip: cargo shows nothing of what a test prints that passes.
test: export HAULOUT_SKIPPED = $(CURDIR)/target/skipped-tests
test: ## build the lab, run every test; what the machine lacks is listed at the end, and fails where CI is set
	$(need_toolchains)
	cargo run --quiet --locked -p haulout-lab --bin lab -- build
	cd $(GO_VCENTER) && go test ./... && LAB_COLLECTOR=own go test ./...
	@mkdir -p $(dir $(HAULOUT_SKIPPED)) && : > $(HAULOUT_SKIPPED)
	cargo test --workspace --locked --no-fail-fast; \
	status=$$?; \
	if [ -s $(HAULOUT_SKIPPED) ]; then echo; echo "Skipped:"; sort -u $(HAULOUT_SKIPPED) | sed 's/^/  /'; fi; \
	exit $$status

.PHONY: pictures
pictures: export HAULOUT_PICTURES = $(CURDIR)/docs/pictures
# A picture that cannot be taken is an error here.
pictures: export CI = true
pictures: ## take the pictures of the documents anew, in the lab (needs chromium, Java and Maven)
	$(need_toolchains)
	cargo test --locked --test scenarios -- screenshots::

.PHONY: histories
histories: export HAULOUT_HISTORIES ?= 20000
histories: export RUST_BACKTRACE = 0
histories: ## search for a random history that breaks an invariant, far longer than make test does (about an hour; HAULOUT_HISTORIES=n)
	$(need_toolchains)
	cargo test --locked -p haulout-core --profile bench --test laws -- histories --nocapture

# `cargo install cargo-mutants`. About 2,000 faults; SHARD=0/41 takes every 41st of them.
MUTANTS := target/mutants
# The tests of the core need nothing of the program, so a fault in it costs well under a minute.
MUTANTS_FLAGS = --baseline skip --timeout 600 $(if $(SHARD),--shard $(SHARD) --sharding round-robin)
.PHONY: mutants
mutants: export HAULOUT_HISTORIES ?= 50
mutants: export RUST_BACKTRACE = 0
mutants: ## break the program in one place at a time, and list what no test notices (a day; SHARD=0/41 is part of it)
	$(need_toolchains)
	@cargo mutants --version >/dev/null 2>&1 || { echo "cargo-mutants is missing: cargo install cargo-mutants --locked" >&2; exit 1; }
	cargo mutants -p haulout-core --output $(MUTANTS)/core $(MUTANTS_FLAGS)
	cargo mutants -p haulout -p haulout-vsphere --output $(MUTANTS)/program $(MUTANTS_FLAGS) \
		--test-package haulout,haulout-vsphere -- --lib --test actors --test soap

# `crates/vsphere/fuzz/README.md`. FUZZ_SECONDS is for each target.
FUZZ_SECONDS ?= 120
.PHONY: fuzz
fuzz: ## feed the readers of what vCenter sends with damaged replies (4 minutes; FUZZ_SECONDS=n is for each of the two targets)
	@cargo fuzz --version >/dev/null 2>&1 || { echo "cargo-fuzz is missing: cargo install cargo-fuzz --locked" >&2; exit 1; }
	@cargo +nightly --version >/dev/null 2>&1 || { echo "a nightly toolchain is missing: rustup toolchain install nightly --profile minimal" >&2; exit 1; }
	cd crates/vsphere && for target in reply xml; do \
		mkdir -p fuzz/corpus/$$target && \
		cargo +nightly fuzz run --target-dir $(CURDIR)/target/fuzz $$target fuzz/corpus/$$target $(CURDIR)/proto-notes/captures -- \
			-max_total_time=$(FUZZ_SECONDS) -dict=fuzz/xml.dict -timeout=10 || exit 1; \
	done

# Every bench that Cargo.toml names; each keeps its table, and all of them go into one directory of benches/results.
BENCHES := $(shell sed -n '/^\[\[bench\]\]/{n;s/^name = "\(.*\)"/\1/p;}' Cargo.toml)
FIGURES := $(CURDIR)/target/figures
RESULTS = benches/results/$(shell date -u +%F)-$(shell nproc)-cores$(if $(QUICK),-quick)
MEASURED = commit $(shell git describe --always --dirty), $(shell nproc) cores, $(shell sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
# Built as the release is, with link-time optimisation, which takes minutes more: a tenth of a millisecond counts there.
AS_SHIPPED := detection_latency
as_shipped = HAULOUT_BENCH_PROFILE=release cargo bench --locked --profile release
bench_of = $(if $(filter $(1),$(AS_SHIPPED)),$(as_shipped),cargo bench --locked) --bench $(1)

.PHONY: bench
bench: export RUST_BACKTRACE = 0
bench: export HAULOUT_FIGURES = $(FIGURES)
bench: ## measure everything and write it to benches/results (more than an hour; QUICK=1 is the smallest run)
	$(need_toolchains)
	cargo run --quiet --locked -p haulout-lab --bin lab -- build
	rm -rf $(FIGURES)
	$(foreach bench,$(BENCHES),$(call bench_of,$(bench)) &&) true
	cargo run --quiet --locked -p haulout-lab --bin lab -- figures $(FIGURES) --into $(RESULTS) --about "$(MEASURED)"
