#!/usr/bin/env python3
"""Explores three branches of a sandbox over the line protocol, tests each, and
keeps the first that passes. It requires only Python's standard library."""

import json
import socket
import subprocess
import sys

TRIES = {
    "guess": "echo 41 >/var/tmp/answer",
    "arithmetic": "echo $((6 * 7)) >/var/tmp/answer",
    "despair": "rm -rf /usr/lib/git-core",  # damages only this branch
}
TEST = 'test "$(cat /var/tmp/answer)" = 42'


class Sandbox:
    """A connection to the socket of one sandbox: one JSON object a line, each way."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rwb")

    def call(self, op, **fields):
        """Sends a request, prints the output, and returns the last answer."""
        self.lines.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        self.lines.flush()
        for line in self.lines:
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"{op}: {answer['error']}")
            if answer.get("ok"):
                return answer
            print(answer.get("stdout", ""), end="")
            print(answer.get("stderr", ""), end="", file=sys.stderr)
        raise RuntimeError(f"{op}: the daemon closed the connection")


def coppice(*args):
    return subprocess.run(["coppice", *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def explore(sandbox):
    base = sandbox.call("head")["head"]
    passed = {}
    for name, command in TRIES.items():
        sandbox.call("checkout", node=base)
        tried = sandbox.call("exec", cmd=command)["node"]
        if sandbox.call("exec", cmd=TEST)["exit"] == 0:
            passed[name] = tried
    if not passed:
        sys.exit("no candidate passed the test")
    winner = next(iter(passed))
    sandbox.call("checkout", node=passed[winner])
    print(f"{winner} won: ", end="", flush=True)
    sandbox.call("exec", cmd="cat /var/tmp/answer")


name = coppice("create")
try:
    explore(Sandbox(coppice("system", "socket", name)))
finally:
    coppice("rm", "--force", name)
