# The everyday verbs. Everything behind them is `cargo xtask` (see `cargo xtask --help`).

.DEFAULT_GOAL := help
.PHONY: help run test test-full check bench deb fmt

XTASK := cargo run --quiet --locked --package xtask --

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

run: cc ## Serve the default volume on 127.0.0.1:4420 (ARGS: other volumes and options)
	@exec $(XTASK) run $(ARGS)

test: cc ## Run every test, those in guest kernels too (NAMES: only some; see `cargo xtask test --list`)
	@$(XTASK) test $(NAMES)

test-full: cc ## The same with all stated rounds and minutes, on three kernels; goes on where it was stopped
	@$(XTASK) test --full $(NAMES)

check: cc ## Format, lints, unit tests and tidy, in under three minutes
	@$(XTASK) check

bench: cc ## Measure the target (ARGS: another scenario, of those that --list names, and options)
	@$(XTASK) bench $(ARGS)

deb: cc ## Make a Debian package, target/nvlane_VERSION_ARCHITECTURE.deb
	@$(XTASK) deb

fmt: ## Format the sources
	@cargo fmt --all

# The linker that cargo needs to build even the task runner, which installs the rest.
.PHONY: cc
cc:
	@command -v cc >/dev/null || { \
	    test "$$(id -u)" = 0 || { echo "A linker is missing: sudo apt-get install gcc libc6-dev"; exit 1; }; \
	    apt-get -qq update && apt-get -qq -y install --no-install-recommends gcc libc6-dev; }
