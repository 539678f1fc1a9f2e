# `make` lists the targets. A fresh Debian machine with Go needs nothing else:
# each target installs or builds what it uses.

SHELL := /bin/bash
BIN   := $(CURDIR)/.bin
STEP  := tools/step

# The official CLI from PATH is as good as the one built from tools/temporal,
# and saves minutes.
TEMPORAL := $(if $(shell command -v temporal),,$(BIN)/temporal)

# Two cores finish these in about ten minutes; a hang should show before that.
TEST_TIMEOUT ?= 20m

# Cases that `make properties` draws: a quarter of an hour on two cores.
CHECKS ?= 100000

# Rounds of `make test-pauses`, six to eight minutes; `make test` has six rounds.
ROUNDS ?= 100

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: deps $(TEMPORAL) build ## try it out: everything on this machine, with sample refunds
	$(BIN)/refundgate dev --samples

.PHONY: build
build: ## build .bin/refundgate
	CGO_ENABLED=0 go build -trimpath -o $(BIN)/refundgate ./cmd/refundgate

.PHONY: test
test: deps $(TEMPORAL) $(BIN)/tctl ## run all tests with the race detector
	go test -race -timeout $(TEST_TIMEOUT) ./...

.PHONY: matrix
matrix: deps $(TEMPORAL) ## interrupt a call at each of its steps in every way, and print the table
	REFUNDGATE_FULL_MATRIX=1 go test -race -count=1 -timeout $(TEST_TIMEOUT) -v -run '^TestKillMatrix$$' ./cmd/refundgate

.PHONY: resets
resets: deps $(TEMPORAL) $(BIN)/tctl ## reset workflows to every event in every way there is, and print what came of it
	REFUNDGATE_ALL_RESETS=1 go test -count=1 -v -timeout 30m ./cmd/refundgate -run TestCase38_ResetMatrix

.PHONY: histories
histories: deps $(TEMPORAL) ## save the histories of this version's workflows as SET, for later versions to replay
	@[ -n "$(SET)" ] || { echo "give the set a name: make histories SET=what-changed"; exit 2; }
	@[ ! -e workflows/testdata/history/$(SET) ] || { echo "the set $(SET) exists; saved histories are never overwritten"; exit 2; }
	go test -count=1 ./workflows -save-histories $(SET)

.PHONY: verify
verify: deps tools ## what CI runs: format, modules, vet, linters, workflowcheck, tests, clean tree
	@$(STEP) "format" $(BIN)/golangci-lint fmt --diff
	@$(STEP) "modules" go mod tidy -diff
	@$(STEP) "go vet" go vet ./...
	@$(STEP) "golangci-lint" $(BIN)/golangci-lint run
	@$(STEP) "workflowcheck" $(BIN)/workflowcheck ./workflows/...
	@$(STEP) "tests" $(MAKE) --no-print-directory test
	@$(STEP) "benchmarks, short form" $(MAKE) --no-print-directory bench-short
	@$(STEP) "nothing changed" git diff --exit-code

.PHONY: lint
lint: $(BIN)/golangci-lint $(BIN)/workflowcheck ## run the linters
	$(BIN)/golangci-lint run
	$(BIN)/workflowcheck ./workflows/...

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## format the code
	$(BIN)/golangci-lint fmt

.PHONY: properties
properties: ## run every property test on CHECKS (100000) drawn cases
	go test -timeout 2h -run '^TestProperty' ./limiter ./workflows -rapid.checks=$(CHECKS)

.PHONY: test-pauses
test-pauses: deps $(TEMPORAL) ## stop and continue the egress's owner ROUNDS (100) times
	ROUNDS=$(ROUNDS) go test -race -v -count=1 -timeout 1h -run '^TestOwnerIsStoppedAgainAndAgain$$' ./cmd/refundgate

.PHONY: load
load: deps $(TEMPORAL) ## load the intake for minutes, kill what there is, and print what it came to (10 min)
	REFUNDGATE_LONG_LOAD=1 go test -v -count=1 -timeout 1h -run '^(TestCase36_.*|TestSteadyOverload|TestServeIsKilledAgainAndAgain)$$' ./cmd/refundgate

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s)
	tools/fuzz

.PHONY: bench
bench: deps $(TEMPORAL) ## measure spacing, cost and intake beside others; writes docs/performance.md (14 min)
	go -C bench run . -o ../docs/performance.md

.PHONY: bench-short
bench-short: deps $(TEMPORAL)
	go -C bench vet ./...
	go -C bench test -count=1 ./...

.PHONY: deps
deps: ## install MariaDB's programs if they are missing
	@tools/deps

.PHONY: tools
tools: $(TEMPORAL) $(BIN)/tctl $(BIN)/golangci-lint $(BIN)/workflowcheck ## build the pinned tools into .bin

# Each tool has a module of its own under tools/: their dependencies exclude
# each other, and none of them belongs in the product's go.mod. A tool is built
# again when its version changes.
$(BIN)/%: tools/%/go.mod tools/%/go.sum
	@$(STEP) "building $* (once)" go -C tools/$* build -trimpath -ldflags '-s -w' -o $(BIN)/ tool
	@touch $@
