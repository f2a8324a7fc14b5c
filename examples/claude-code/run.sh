#!/usr/bin/env bash
# Runs the example that README.md describes. It requires go and npm, and removes
# what it creates, except Claude Code in ~/.cache/coppice-example.
set -euo pipefail
cd "$(dirname "$0")"

install=${INSTALL:-$HOME/.cache/coppice-example}
mkdir -p "$install"
cp package.json "$install"
npm install --prefix "$install" --no-audit --no-fund --silent

tmp=$(mktemp -d)
../../scripts/build "$tmp/coppice" # with its helper programs
go build -o "$tmp/" .
export PATH=$tmp:$PATH COPPICE_HOME=$tmp/home
trap '{ coppice rm --force agent; coppice serve --stop; } >/dev/null; rm -rf "$tmp"' EXIT

claude-code "$install" agent
echo
coppice log agent
