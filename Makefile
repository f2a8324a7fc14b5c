# Coppice: two commands do all the setup: `make demo` shows the main workflow,
# `make test` runs the tests. `make help` lists the rest.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Everything is built static, as the program is, so that linters and tests reuse what is compiled.
# Only the race detector requires cgo.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

GO       ?= go
# The tag without its v, as in 0.1.0.
VERSION  ?= $(patsubst v%,%,$(shell git describe --tags --always --dirty 2>/dev/null || echo devel))
BIN      := bin/coppice
# A memory image belongs to one version of gVisor, which refuses images of other versions.
GVISOR   := $(shell awk '$$1 == "gvisor.dev/gvisor" { print $$2 }' go.mod)
LDFLAGS  := -s -w -X github.com/coppice-dev/coppice/internal/cli.version=$(VERSION) -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR)
# The modules of the program and of its benchmarks.
MODULES  := . bench
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help build demo test test-full deps check lint unit user cross bench recording man release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build the one static binary, bin/coppice
	@GO='$(GO)' scripts/build '$(BIN)' '$(LDFLAGS)'

demo: build ## break a sandbox of this machine and bring it back
	@scripts/demo

test: deps check lint cross unit ## everything that CI runs

test-full: deps check lint cross ## the same at full length: ten minutes of random root file systems, all hostile ones, more failing setup steps, arm64, and a release
	@scripts/test --full
	@scripts/arm64
	@scripts/release-check

deps: ## install what the tests need (as root), or print what is missing
	@scripts/deps

check: ## formatting and module files
	@test -z "$$(gofmt -l .)" || { echo "gofmt would change:"; gofmt -l .; exit 1; }
	@# Only a difference in go.mod counts, and -e ignores errors: a test of a dependency
	@# requires a module that the proxy withholds, so that go.sum depends on the proxy.
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

cross: ## build the client for other systems, and vet everything for arm64
	GOOS=linux GOARCH=arm64 $(GO) vet ./cmd/... ./internal/... ./client/...
	GOOS=linux GOARCH=arm64 $(GO) vet -C bench ./...
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/coppice
	GOOS=windows GOARCH=amd64 $(GO) build -o /dev/null ./cmd/coppice

unit: ## all tests with the race detector, as root and as an ordinary user
	@scripts/test

bench: build ## run the benchmarks, and print the results beside the baselines
	@scripts/bench

recording: ## record the story that opens README.md (as root): docs/rewind.cast and docs/rewind.svg
	@scripts/record

man: build ## write the manual pages to bin/man
	$(BIN) man bin/man

release: ## build the release VERSION (as in 0.1.0) of the commit at HEAD, in dist: archives, packages, image
	@rm -rf dist
	@GO='$(GO)' scripts/release '$(VERSION)' dist

clean: ## remove what was built
	rm -rf bin dist
