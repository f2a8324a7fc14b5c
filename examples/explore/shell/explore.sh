#!/bin/sh
# Explores three branches of a sandbox over the HTTP API on the daemon's socket, with a
# tournament: each candidate runs in its own fork, concurrently with the others, and
# the sandbox is left at the first that passes the test.
set -eu

sandbox=$(coppice create)
# The candidates' forks remain until gc.
trap 'coppice rm --force "$sandbox" >/dev/null; coppice system gc --quiet' EXIT
socket=$(coppice status --json | sed -n 's/.*"home": *"\([^"]*\)".*/\1/p')/daemon.sock

# api METHOD PATH [JSON] sends one request and prints the answer. On an HTTP error it prints the
# server's reason to stderr and fails.
api() {
	if ! answer=$(curl --silent --show-error --fail-with-body --unix-socket "$socket" \
		--request "$1" --json "${3-}" "http://coppice/v1/sandboxes/$sandbox/$2"); then
		printf '%s\n' "$answer" >&2
		return 1
	fi
	printf '%s\n' "$answer"
}

result=$(api POST tournament '{
  "test": "test \"$(cat /var/tmp/answer)\" = 42",
  "candidates": [
    {"name": "guess", "cmd": "echo 41 >/var/tmp/answer"},
    {"name": "arithmetic", "cmd": "echo $((6 * 7)) >/var/tmp/answer"},
    {"name": "despair", "cmd": "rm -rf /usr/lib/git-core"}
  ],
  "keep": true
}')
winner=$(printf %s "$result" | sed -n 's/.*"winner":"\([^"]*\)".*/\1/p')
[ -n "$winner" ] || {
	echo "no candidate passed the test" >&2
	exit 1
}
printf '%s won: ' "$winner"
coppice exec "$sandbox" -- cat /var/tmp/answer
