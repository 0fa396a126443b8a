# What a person types; everything behind it is Cargo's.

.PHONY: lab
lab: ## build the lab's parts into the cache (about 5 minutes the first time, nothing afterwards)
	@command -v cc >/dev/null || { echo "the lab needs a C compiler for Rust to link with, and there is no cc on PATH: install gcc or clang" >&2; exit 1; }
	@command -v go >/dev/null || { echo "the lab builds its parts with Go, and there is no go on PATH: install Go 1.26 or newer (https://go.dev/dl)" >&2; exit 1; }
	cargo run -p haulout-lab --bin lab -- build
