# Targets for developers and for CI. Cargo does the builds.

.DEFAULT_GOAL := help

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# Targets install missing tools here.
TOOLS := $(CURDIR)/target/tools
export PATH := $(PATH):$(TOOLS)/bin
INSTALL := cargo install --quiet --locked --root $(TOOLS)
CARGO_DENY := 0.20.2
CARGO_FUZZ := 0.13.2
CARGO_MUTANTS := 27.1.0
MDBOOK := 0.5.4

define need_rust
@command -v cargo >/dev/null || { echo "cargo is not on PATH: install Rust (https://rustup.rs)" >&2; exit 1; }
@command -v cc >/dev/null || { echo "cc is not on PATH, and Rust needs it to link: install gcc or clang" >&2; exit 1; }
endef

# The toolchains that the lab needs.
define need_toolchains
$(need_rust)
@command -v go >/dev/null || { echo "go is not on PATH, and the lab is built with it: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }
endef

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

build_lab = cargo run --locked -p haulout-lab --bin lab -- build

# Both programs in one build, so that their dependencies are compiled once. The laws need an optimised core, which takes minutes to build.
demo_build = cargo build --locked --config profile.dev.package.haulout-core.opt-level=0 $(if $(RELEASE),--release)

.PHONY: demo
demo: ## show two GPU nodes in host maintenance, simulated (a minute; KEEP=1 keeps it running, RELEASE=1 uses the release build, REAL=1 has a real kube-apiserver)
ifeq ($(filter-out 0 false,$(REAL)),)
	$(need_rust)
	@echo "cargo builds haulout and the demo; the first time, this takes about 4 minutes on 2 cores"
	@$(demo_build) -p haulout -p haulout-demo --bin haulout --bin demo
	@$(TARGET)/$(if $(RELEASE),release,debug)/demo
else
	$(need_toolchains)
	@cargo run --locked -p haulout-lab --bin lab -- demo
endif

.PHONY: lab
lab: ## build the parts of `lab up` into a cache (about 10 minutes the first time; ALL=1: also those of the tests)
	$(need_toolchains)
	@$(build_lab) $(if $(ALL),$(LAB_OF_NEIGHBOURS))
	@echo "start it with: cargo run -p haulout-lab --bin lab -- up"

.PHONY: chart
chart: ## generate chart/README.md and the descriptions in chart/values.schema.json from the chart's values
	$(need_toolchains)
	@$(build_lab) helm | sed -n 's/^helm: //p' | { read tools; "$$tools/helm-docs" --chart-search-root chart; }
	HAULOUT_WRITE_REFERENCE=1 cargo test --quiet --locked --test chart schema_has_the_descriptions

GO_VCENTER := tests/lab/go/vcenter

.PHONY: docs
docs: ## generate docs/reference from the program
	HAULOUT_WRITE_REFERENCE=1 cargo test --quiet --locked --test reference

.PHONY: check
check: ## check formatting, clippy, the crates' documentation and go vet
	$(need_toolchains)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	cd $(GO_VCENTER) && go vet ./...
	cd tests/lab/go/kubelet && go vet ./...

# Not advisories by default: they need the network, and change without a commit here.
DENY ?= bans licenses sources
.PHONY: deny
deny: ## check the crates against deny.toml: bans, licences, sources (DENY=advisories: known vulnerabilities)
	@cargo deny --version >/dev/null 2>&1 || $(INSTALL) --version $(CARGO_DENY) cargo-deny
	cargo deny --locked check $(DENY)

# tests/documents.rs checks the links, and that all pages are in the book.
.PHONY: book
book: ## build docs/ as a book in target/book
	@mdbook --version >/dev/null 2>&1 || $(INSTALL) --version $(MDBOOK) mdbook
	@mdbook build docs 2>&1

# The steps of image and release are in .ci/release.
RELEASE_FILES := $(CURDIR)/target/release-files
LINUX := linux_$(if $(filter aarch64 arm64,$(shell uname -m)),arm64,amd64)

.PHONY: image
image: export OUT = $(RELEASE_FILES)
image: ## build the static release program like the Dockerfile (10 minutes), test the image, and leave an archive of it to load or push
	$(need_toolchains)
	.ci/release program $(LINUX)
	HAULOUT_IMAGE_PROGRAM=$(RELEASE_FILES)/programs/$(LINUX)/haulout cargo test --locked --test image -- --nocapture
	@.ci/release archives

# $(1): the module in tests/lab/go, $(2): the program in it.
install_tool = cd tests/lab/go/$(1) && CGO_ENABLED=0 GOWORK=off go build -trimpath -o $(TOOLS)/bin/ $(2)

.PHONY: release
release: export OUT = $(RELEASE_FILES)
release: ## build all that a release has, and push image and chart to your registry (REGISTRY=registry.example.com/me; SIGN=no without signatures)
	$(need_toolchains)
	@test -n "$(REGISTRY)" || { echo "name a registry: make release REGISTRY=registry.example.com/me" >&2; exit 2; }
	@command -v helm >/dev/null || { echo "building helm, which pushes the chart (1 to 4 minutes on 2 cores the first time)"; $(call install_tool,helm,helm.sh/helm/v3/cmd/helm); }
	@command -v crane >/dev/null || { echo "building crane, which pushes the images (a minute on 2 cores the first time)"; $(call install_tool,registry,github.com/google/go-containerregistry/cmd/crane); }
	@test "$(SIGN)" = no || command -v cosign >/dev/null || { echo "building cosign, which signs (some minutes the first time)"; $(call install_tool,cosign,github.com/sigstore/cosign/v2/cmd/cosign); }
	REGISTRY=$(REGISTRY) SIGN=$(or $(SIGN),key) .ci/release all

.PHONY: platforms
platforms: ## check that the kubectl plugin compiles for macOS and Windows
	.ci/check-platforms

.PHONY: notices
notices: ## generate THIRD-PARTY-NOTICES from Cargo.lock
	.ci/crates notices > THIRD-PARTY-NOTICES.new && mv THIRD-PARTY-NOTICES.new THIRD-PARTY-NOTICES

TESTS := test test-core test-scenarios test-neighbours
# Scenarios mostly wait, so more of them run in parallel than there are cores. With many more the clusters are so slow that waits time out.
$(TESTS): export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN) + 1)))
$(TESTS): export RUST_BACKTRACE = 0
# Skipped tests are listed in this file, because cargo hides the output of passed tests.
$(TESTS): export HAULOUT_SKIPPED = $(CURDIR)/target/skipped-tests
# Lines of seconds and name.
$(TESTS): export HAULOUT_TEST_TIMES = $(CURDIR)/target/test-times

# What the tests need of the lab, and what those of test-neighbours need.
LAB_OF_TESTS := kube vcenter
LAB_OF_NEIGHBOURS := $(LAB_OF_TESTS) jaeger zipkin helm registry cluster-api csi kubelet containerd

# A new test file belongs to test-core.
TEST_FILES := $(wildcard tests/*.rs tests/*/main.rs tests/demo/tests/*.rs tests/lab/tests/*.rs tests/sim/tests/*.rs crates/*/tests/*.rs crates/*/tests/*/main.rs)
NEIGHBOUR_FILES := chart image release jaeger
CORE_FILES := $(filter-out scenarios $(NEIGHBOUR_FILES),$(notdir $(basename $(TEST_FILES:/main.rs=.rs))))
# The other two programs have no unit tests (tests/architecture.rs), and a test program of each would link all of Haulout once more.
CORE := --lib --bin demo --bin lab $(CORE_FILES:%=--test %)
SCENARIOS := --test scenarios
NEIGHBOURS := $(NEIGHBOUR_FILES:%=--test %)
# Cargo builds a program only with a test of its package.
WITH_LAB := --test fault_proxy

# $(1): the arguments of cargo test that select tests, $(2): the parts of the lab. All in one build: `cargo run -p haulout-lab`
# selects other features of the dependencies, and would compile them twice.
define prepare_tests
$(need_toolchains)
@echo "cargo builds the tests and what they start; the first time, this takes 5 to 10 minutes on 2 cores"
cargo test --workspace --locked --no-run $(1)
$(TARGET)/debug/lab build $(2)
endef

define run_go_tests
cd $(GO_VCENTER) && go test ./... && LAB_COLLECTOR=own go test ./...
endef

# A workspace of its own: see its Cargo.toml.
define run_permutations
cargo test --quiet --locked --manifest-path tests/permutations/Cargo.toml --target-dir $(TARGET)
endef

# $(1): the arguments of cargo test that select tests, $(2): those of the test programs.
cargo_test = cargo test --workspace --locked --no-fail-fast $(1) $(if $(2),-- $(2)) || status=$$?;

# $(1): calls of cargo_test.
define run_tests
@mkdir -p target && : > $(HAULOUT_SKIPPED) && : > $(HAULOUT_TEST_TIMES)
status=0; $(1) \
if [ -s $(HAULOUT_TEST_TIMES) ]; then echo; echo "The slowest scenarios, in seconds:"; sort -rn $(HAULOUT_TEST_TIMES) | head -n 10 | sed 's/^/  /'; fi; \
if [ -s $(HAULOUT_SKIPPED) ]; then echo; echo "Skipped:"; sort -u $(HAULOUT_SKIPPED) | sed 's/^/  /'; fi; \
exit $$status
endef

.PHONY: $(TESTS)
test: ## run all tests but those of test-neighbours; skipped tests are listed at the end, and fail if CI is set
	$(call prepare_tests,$(CORE) $(SCENARIOS),$(LAB_OF_TESTS))
	$(run_go_tests)
	$(run_permutations)
	$(call run_tests,$(call cargo_test,$(CORE) $(SCENARIOS),--skip neighbours::) $(call cargo_test,--doc))

# CI runs the two parts of make test in parallel.
test-core: ## the tests of make test without the scenarios
	$(call prepare_tests,$(CORE),$(LAB_OF_TESTS))
	$(run_go_tests)
	$(run_permutations)
	$(call run_tests,$(call cargo_test,$(CORE)) $(call cargo_test,--doc))

test-scenarios: ## the scenarios of make test
	$(call prepare_tests,$(SCENARIOS) $(WITH_LAB),$(LAB_OF_TESTS))
	$(call run_tests,$(call cargo_test,$(SCENARIOS),--skip neighbours::))

# The image has no libc. Optimised, the program would take ten minutes. Only root runs the pods of a release.
STATIC := $(TARGET)/static
test-neighbours test-kubelets: export HAULOUT_STATIC_PROGRAM = $(STATIC)/programs/$(LINUX)/haulout
define build_static_program
@test "$$(id -u)" != 0 || { echo "cargo builds the program of the image, with musl; the first time, this takes some minutes on 2 cores" && PROFILE=dev OUT=$(STATIC) .ci/release program $(LINUX); }
endef

test-neighbours: ## run the tests that need more: tracing, browsers, Prometheus, helm, Cluster API, CSI, real kubelets, a registry, the image
	$(call prepare_tests,$(SCENARIOS) $(NEIGHBOURS),$(LAB_OF_NEIGHBOURS))
	$(build_static_program)
	$(call run_tests,$(call cargo_test,$(SCENARIOS),neighbours::) $(call cargo_test,$(NEIGHBOURS)))

# Only root can run them; CI runs test-neighbours without.
.PHONY: test-kubelets
test-kubelets: export RUST_TEST_THREADS ?= 3
test-kubelets: export RUST_BACKTRACE = 0
test-kubelets: ## the tests of make test-neighbours with real kubelets, which need root
	$(call prepare_tests,$(SCENARIOS) --test chart $(WITH_LAB),$(LAB_OF_TESTS) helm registry kubelet containerd)
	$(build_static_program)
	cargo test --workspace --locked $(SCENARIOS) -- neighbours::real_kubelet::
	cargo test --workspace --locked --test chart -- pods::

# The documents have some pictures of the status page; all states are in target/pictures.
STATES := held-desktop-light held-phone-dark many-desktop-light

.PHONY: pictures
pictures: export HAULOUT_PICTURES = $(CURDIR)/docs/pictures
# With CI set, a missing browser is an error.
pictures: export CI = true
pictures: ## make the pictures of the documents: screenshots in the lab, and the output of the demo (needs chromium, Java and Maven)
	$(call prepare_tests,$(SCENARIOS) $(WITH_LAB),$(LAB_OF_TESTS) jaeger zipkin)
	cargo test --workspace --locked $(SCENARIOS) -- neighbours::screenshots::
	HAULOUT_PICTURES=$(CURDIR)/target/pictures cargo test --workspace --locked $(SCENARIOS) -- neighbours::page_states::
	for picture in $(STATES); do cp target/pictures/states/$$picture.png docs/pictures/; done
	$(MAKE) --no-print-directory demo > target/demo.txt
	sed -n '/^1\. /,/^2\. /p' target/demo.txt | sed '$$d' | sed '$$d' > target/demo-picture.txt
	test -s target/demo-picture.txt
	.ci/terminal-picture target/demo-picture.txt > docs/pictures/demo.svg

# A build of its own: optimised, with assertions.
SEEDS ?= 1000
simulate := cargo run --quiet --locked --profile sim -p haulout-sim --bin simulate --

.PHONY: simulate
simulate: ## run the whole controller in simulated time against simulated peers with faults (SEEDS=n; SEED=n tells one story)
	$(simulate) $(if $(SEED),--seed $(SEED) $(if $(LOG),--log $(LOG)),--seeds $(SEEDS) --complete)

.PHONY: simulate-defects
simulate-defects: SEEDS = 500
simulate-defects: ## for each known defect, plant it and see whether the simulation finds it (about an hour; SEEDS=n)
	SEEDS=$(SEEDS) tests/sim/defects/run

.PHONY: byte-faults
byte-faults: export HAULOUT_ALL_BYTE_FAULTS = 1
byte-faults: export HAULOUT_CUTS ?= 1000
byte-faults: export RUST_BACKTRACE = 0
byte-faults: ## break connections and replies at each kind of request, and cut all connections 1,000 times (half an hour; HAULOUT_CUTS=n)
	$(call prepare_tests,$(SCENARIOS) $(WITH_LAB),$(LAB_OF_TESTS))
	cargo test --workspace --locked $(SCENARIOS) -- byte_faults:: reconnects:: --nocapture

.PHONY: histories
histories: export HAULOUT_HISTORIES ?= 20000
histories: export RUST_BACKTRACE = 0
histories: ## search for random histories that break an invariant, longer than make test does (about an hour; HAULOUT_HISTORIES=n)
	$(need_toolchains)
	cargo test --locked -p haulout-core --profile bench --test laws -- histories --nocapture

.PHONY: model-check
model-check: export HAULOUT_MODEL_CHECK_FAULTS ?= 2
model-check: export RUST_BACKTRACE = 0
model-check: ## search all states with two faults on a path, more than make test does (some minutes and GB; HAULOUT_MODEL_CHECK_FAULTS=n)
	$(need_toolchains)
	cargo test --locked -p haulout-core --profile bench --test model_check -- --nocapture --test-threads=1

# About 2,000 mutants; SHARD=0/41 takes every 41st. cargo-mutants fails if a mutant survives; the next crate is tested anyway.
MUTANTS := target/mutants
# The tests of the crates do not need the program, so a mutant in them takes half a minute.
MUTANTS_FLAGS = --baseline skip --timeout 300 $(if $(SHARD),--shard $(SHARD) --sharding round-robin)
.PHONY: mutants
mutants: export HAULOUT_HISTORIES ?= 50
mutants: export PROPTEST_RNG_SEED ?= 1
mutants: export HAULOUT_CASES_EVERY ?= 13
mutants: export RUST_BACKTRACE = 0
mutants: ## change the program in one place at a time, and list changes that no test detects (a day; SHARD=0/41 is a part of it)
	$(need_toolchains)
	@cargo mutants --version >/dev/null 2>&1 || $(INSTALL) --version $(CARGO_MUTANTS) cargo-mutants
	mkdir -p $(MUTANTS)
	status=0; \
	cargo mutants -p haulout-core --output $(MUTANTS)/core $(MUTANTS_FLAGS) || status=$$?; \
	cargo mutants -p haulout-vsphere --output $(MUTANTS)/vsphere $(MUTANTS_FLAGS) || status=$$?; \
	cargo mutants -p haulout-kubernetes --output $(MUTANTS)/kubernetes $(MUTANTS_FLAGS) || status=$$?; \
	exit $$status

.PHONY: soak
soak: export SOAK_MINUTES ?= 120
soak: export SOAK_NODES ?= 200
soak: export RUST_BACKTRACE = 0
soak: ## many nodes under random clicks, cancels, kills and restarts, and a check of the logs (two hours; SOAK_MINUTES=n, SOAK_NODES=n, SOAK_SEED=n)
	$(need_toolchains)
	$(build_lab) kube vcenter
	cargo bench --locked --bench soak

# See the README.md beside each crate of targets. FUZZ_SECONDS is the time for each target.
FUZZ_SECONDS ?= 60
FUZZ := --target-dir $(CURDIR)/target/fuzz

# $(1): the folder of the targets, $(2): the targets, $(3): more seeds, $(4): flags of cargo-fuzz, $(5): flags of libFuzzer.
define fuzz_targets
for target in $(2); do \
	mkdir -p $(1)/corpus/$$target && \
	cargo +nightly fuzz run --fuzz-dir $(1) $(FUZZ) $(4) $$target $(1)/corpus/$$target $$(ls -d $(1)/seeds/$$target 2>/dev/null) $(3) -- \
		-max_total_time=$(FUZZ_SECONDS) -timeout=10 $(5) || exit 1; \
done
endef

.PHONY: fuzz
fuzz: ## fuzz what is read from outside: replies, records, objects, names, settings (FUZZ_SECONDS=n for each of the 11 targets, 60 by default)
	@cargo fuzz --version >/dev/null 2>&1 || $(INSTALL) --version $(CARGO_FUZZ) cargo-fuzz
	@cargo +nightly --version >/dev/null 2>&1 || { echo "a nightly toolchain is missing: rustup toolchain install nightly --profile minimal" >&2; exit 1; }
	$(call fuzz_targets,crates/vsphere/fuzz,reply xml,proto-notes/captures,,-dict=crates/vsphere/fuzz/xml.dict)
	$(call fuzz_targets,crates/vsphere/fuzz,stream name,,,-dict=crates/vsphere/fuzz/xml.dict)
	$(call fuzz_targets,crates/core/fuzz,record window)
	# Without a sanitizer: the program has no unsafe code, and all its dependencies would be built with it.
	$(call fuzz_targets,tests/fuzz,settings selector name maintenance kubeconfig,,--sanitizer none)

.PHONY: recordings
recordings: ## decode recorded replies of a vCenter, one in each .xml file of a folder (DIR=folder), and say what cannot be read
	@test -n "$(DIR)" || { echo "name the folder: make recordings DIR=folder" >&2; exit 2; }
	@cargo run --quiet --locked -p haulout-vsphere --features fuzz --example recordings -- "$(DIR)"

# All benches of Cargo.toml. Their tables are collected into one directory of benches/results.
BENCHES := $(filter-out soak,$(shell sed -n '/^\[\[bench\]\]/{n;s/^name = "\(.*\)"/\1/p;}' Cargo.toml))
FIGURES := $(CURDIR)/target/figures
RESULTS = benches/results/$(shell date -u +%F)-$(shell nproc)-cores$(if $(QUICK),-quick)
MEASURED = commit $(shell git describe --always --dirty), $(shell nproc) cores, $(shell sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
# Built like the release, with link-time optimisation, because this bench measures tenths of a millisecond.
AS_SHIPPED := detection_latency
as_shipped = HAULOUT_BENCH_PROFILE=release cargo bench --locked --profile release
bench_of = $(if $(filter $(1),$(AS_SHIPPED)),$(as_shipped),cargo bench --locked) --bench $(1)

.PHONY: bench
bench: export RUST_BACKTRACE = 0
bench: export HAULOUT_FIGURES = $(FIGURES)
bench: ## run all benches and write the tables to benches/results (more than an hour; QUICK=1 is the smallest run)
	$(need_toolchains)
	$(build_lab) kube vcenter jaeger govmomi
	rm -rf $(FIGURES)
	$(foreach bench,$(BENCHES),$(call bench_of,$(bench)) &&) true
	cargo run --quiet --locked -p haulout-lab --bin lab -- figures $(FIGURES) --into $(RESULTS) --about "$(MEASURED)"
