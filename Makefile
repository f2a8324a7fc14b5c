# Coppice: two commands do all the set-up: `make demo` runs the main job,
# `make test` passes the tests. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything is built as the program is, static, so that linters and tests find it compiled; the
# race detector alone needs C.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BIN      := bin/coppice
# A memory image is of one version of gVisor, which refuses those of others.
GVISOR   := $(shell awk '$$1 == "gvisor.dev/gvisor" { print $$2 }' go.mod)
LDFLAGS  := -s -w -X github.com/coppice-dev/coppice/internal/cli.version=$(VERSION) -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR)
# The program, and the programs that measure it.
MODULES  := . bench
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help build demo test test-full deps check lint unit user cross bench man clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build the one static binary, bin/coppice
	@GO='$(GO)' scripts/build $(BIN) '$(LDFLAGS)'

demo: build ## break a sandbox of this machine and bring it back
	@scripts/demo

test: deps check lint cross unit ## everything that CI runs

test-full: deps check lint cross ## the same, with ten minutes of random root file systems, all hostile ones, and more failing steps of the set-up
	@scripts/test --full

deps: ## install what the tests need (as root; elsewhere it says what is missing)
	@scripts/deps

check: ## formatting and module files
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@# Of the difference go.mod alone counts, and -e: a test of a dependency wants a
	@# module that the proxy withholds, so that go.sum depends on who serves it.
	@for module in $(MODULES); do \
		echo "$(GO) mod verify, $(GO) mod tidy: $$module"; \
		$(GO) mod verify -C $$module; \
		diff=$$($(GO) mod tidy -C $$module -e -diff 2>&1) || { \
			if ! grep -q '^diff ' <<<"$$diff"; then echo "$$diff"; echo "go mod tidy did not run"; exit 1; fi; \
			if grep -q '^diff .*/go\.mod$$' <<<"$$diff"; then echo "$$diff"; echo "$$module/go.mod is not tidy: go mod tidy -C $$module -e"; exit 1; fi; \
		}; \
	done

lint: ## go vet, and other linters of golangci-lint
	$(GO) run $(LINT) run ./...
	cd bench && $(GO) run $(LINT) run ./...

cross: ## the client builds on other systems, the whole on arm64
	GOOS=linux GOARCH=arm64 $(GO) vet ./cmd/... ./internal/... ./client/...
	GOOS=linux GOARCH=arm64 $(GO) vet -C bench ./...
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/coppice
	GOOS=windows GOARCH=amd64 $(GO) build -o /dev/null ./cmd/coppice

unit: ## all tests with the race detector, as root and as an ordinary user
	@scripts/test

bench: build ## our figures beside their baselines
	@scripts/bench

man: build ## manual pages in bin/man
	$(BIN) man bin/man

clean: ## remove what was built
	rm -rf bin
