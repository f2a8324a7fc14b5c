package httpapi

// about is what is said of an operation beyond its summary: a sentence or two, and a
// request that works as it stands, where there is one to send.
type about struct {
	text    string
	example any
}

// aboutOperations are those of all operations, by id. A test misses those that are
// not here, and sends the examples to a real daemon.
func aboutOperations() map[string]about {
	type obj = map[string]any
	say := func(text string) about { return about{text: text} }
	const starts = " A sandbox that is stopped is started."
	return map[string]about{
		"healthz": say("For load balancers and supervisors. Needs no token."),
		"ping":    say("Answers with nothing: the daemon is there, and the token is good."),
		"metrics": say("Requests, sandboxes, events and bytes, in the text format of Prometheus."),
		"openapi": say("OpenAPI 3.1, made of the operations as they are served. Needs no token."),
		"docs":    say("Works without any network but the daemon's. Needs no token."),
		"status":  say("Version, home, and where it listens."),
		"probe":   say("Tiers, drivers and features, each tried out, with what mends those that are missing."),
		"gc": {"Drops the layers that no snapshot needs, the forks of ended tournaments, and, with keep, old snapshots. With Accept: application/x-ndjson progress comes first, an Event a line.",
			obj{"dry_run": true}},
		"verifyAll":   say("Hashes all that is stored anew. Damage is a result, not an error. With Accept: application/x-ndjson progress comes first, an Event a line."),
		"listTokens":  say("Oldest first."),
		"createToken": {"The secret is kept as a hash alone, and cannot be told again.", obj{"name": "ci", "scope": "operate"}},
		"revokeToken": say("Streams and commands' connections that were opened with it are closed; commands run on."),

		"listSandboxes": say("A token for some sandboxes sees those alone."),
		"createSandbox": {"From the host itself unless it is told otherwise: nothing is copied then. An archive is sent as multipart/form-data, the request before it. Nothing is started.",
			obj{"name": "web-1"}},
		"getSandbox":    say("What it is, what confines it, and what its history takes. Nothing is started."),
		"getPolicy":     say("Its canonical text, and the same in lines. Rules that hold for a time are in it; base is the policy without them."),
		"removeSandbox": say("Layers that others share stay. One in which commands run is a conflict without force."),
		"updateSandbox": {"What is left out stays as it is.", obj{"idle_stop_ms": 600000}},
		"startSandbox":  say("The supervised command starts again where there is one, whatever its restart policy. One without it is made ready for commands, and goes idle after half a minute without a process. What runs already is left alone. Other operations start a sandbox by themselves."),
		"stopSandbox":   say("SIGTERM, and SIGKILL after five seconds. A supervised command is not started again by itself."),
		"forkSandbox":   {"A fork takes the same time however large the sandbox is, and goes its own way from there.", obj{"n": 2}},
		"tournament": {"Each candidate runs in a fork of its own, then the test. The first that passes wins, or with score the one with the best. With Accept: application/x-ndjson progress comes first, an Event a line. It ends with the request.",
			obj{"test": "test -e done", "candidates": []any{obj{"cmd": "touch done"}, obj{"cmd": "false"}}}},
		"openSocket":  say("It is there until it is closed, or the sandbox removed; opening it again gives the same path."),
		"closeSocket": say("That there is none is no error."),

		"head":           say("Takes no snapshot, and starts nothing."),
		"log":            say("Rows draw it as git log --graph does. Starts nothing."),
		"listSnapshots":  say("The same as log."),
		"branches":       say("Those that have no snapshot after them, newest first."),
		"show":           say("Its changes against its parent, by path."),
		"deleteSnapshot": say("HEAD, the first snapshot, and one that another sandbox made are a conflict."),
		"diff":           say("Without a and b, what has changed since HEAD. With patch it is text, for people and for patch(1)."),
		"commit":         {"Nothing is recorded when nothing has changed, and the answer names HEAD. Processes are stopped for the blink of an eye, and run on.", obj{"message": "the tests pass"}},
		"createSnapshot": {"The same as commit, but for the status.", obj{"message": "the tests pass"}},
		"mark":           {"For what an agent is about to do, or has done: the label becomes the message of snapshots.", obj{"label": "before the upgrade"}},
		"checkout":       {"The present is kept as a snapshot first, so nothing is lost. Processes are stopped, and a supervised command is started again there; in place they run on.", obj{"node": "HEAD"}},
		"undo":           {"The present is kept first; redo comes back to it.", obj{"n": 1}},
		"redo":           {"Without an undo to take back it is not_found.", obj{}},
		"listTags":       say("By name."),
		"setTag":         {"One that is there moves. A tagged snapshot is never dropped by gc.", obj{"name": "good"}},
		"deleteTag":      say("The snapshot stays."),
		"verify":         say("Damage is a result, not an error. With Accept: application/x-ndjson progress comes first, an Event a line."),

		"exec": {"Output comes as Server-Sent Events, at the pace that it is read. The command runs on when the client goes away, and execOutput resumes it. What it changed becomes a snapshot, which the exit names." + starts,
			obj{"cmd": []any{"echo", "hello"}}},
		"run":           {"It belongs to the sandbox and not to the request; there is one at a time, and another is a conflict. Snapshots are taken while it works." + starts, obj{"cmd": []any{"sleep", "60"}}},
		"listExecs":     say("Those of every client. Starts nothing."),
		"execOutput":    say("From the beginning of what is kept, or where Last-Event-ID says. For a minute after the end, too. A token with the scope read looks on: the command does not wait for it."),
		"execInput":     say("For a command that was started with stdin, or on a terminal. Answers when the command has taken it all."),
		"signalExec":    {"It reaches the command's process group; on a terminal, INT reaches the one in the foreground.", obj{"name": "INT"}},
		"cancelExec":    say("Answers at once; the exit comes in its output."),
		"attachSession": {"To type, and not to look on alone, needs the scope operate.", obj{"read_only": true}},
		"attach":        say("Binary messages are the terminal's bytes, both ways; text messages are TerminalControl as JSON. The last one of the server's is the exit, or an error. The token of attachSession opens it, and no other is needed."),
		"listProcesses": say("A sandbox that is stopped has none, and stays so."),
		"signalProcess": {"TERM, unless it says another.", obj{"name": "TERM"}},
		"listPorts":     say("A sandbox that is stopped has none, and stays so."),
		"previewPort":   {"For a browser: whoever has the link may use that port until it expires.", obj{"ttl_ms": 3600000}},
		"connectPort":   say("A sandbox that is stopped is started when it has a supervised command, which has ten seconds to listen."),

		"readFile":      say("Takes Range and If-None-Match." + starts + " With at nothing is."),
		"writeFile":     say("It appears whole or not at all, keeps the mode of the file that it replaces, and becomes a snapshot." + starts),
		"removeFile":    say("A directory that is not empty needs recursive. It becomes a snapshot." + starts),
		"statFile":      say("A link itself, unless it is to be followed." + starts + " With at nothing is."),
		"listFiles":     say("Parents before children, names in order." + starts + " With at nothing is."),
		"makeDirectory": {"It becomes a snapshot." + starts, obj{"path": "/src/new", "parents": true}},
		"moveFile":      {"As rename(2): a file that is there is replaced. It becomes a snapshot." + starts, obj{"from": "/src/old.go", "to": "/src/new.go"}},
		"watchFiles":    say("From now on, until the client goes. The first event has no kind: nothing is missed any more." + starts),
		"downloadFiles": say("A tar archive with paths beneath the directory, owners and modes as they are inside." + starts + " With at nothing is."),
		"uploadFiles":   say("A tar archive, plain or compressed by gzip or zstd. Paths that lead out of the directory are left out. It becomes one snapshot." + starts),

		"net":           say("Oldest first: the newest 100 that are kept, unless last or since says which; of a sandbox that is live also what is open now. One whose network nothing decides about has none. Nothing is started."),
		"netEvents":     say("From now on, after those that last or since asks for."),
		"ledger":        say("Oldest first. Of a sandbox that was removed by its id; \"host\" has what belongs to none. Where more is set, go on with from."),
		"ledgerEvents":  say("From the first that is asked for on."),
		"inspectRecord": say("Those of the same command, what tells that it did not come about, decisions about the network and denials while it ran, and what was kept of its output, in base64."),
		"ledgerBlob":    say("What was kept of a command's output, redacted, as it was written: its bytes may be anything."),
		"verifyLedger":  {"What does not fit is an error of kind corrupt that names the first such record. A checkpoint proves that the log only grew since.", obj{}},
		"exportLedger":  say("A tar archive that is verified without Coppice's files, by docs/LEDGER.md."),
		"archiveLedger": {"Whole segments alone are compressed, and never the newest. It is recorded.", obj{"before": "2026-01-02T15:04:05Z"}},
		"cosignLedger": {"As a witness, where the log grew from the checkpoint that this host cosigned last. A log that was rolled back is refused.",
			obj{"checkpoint": "old 0\n\ncoppice/0123456789abcdef\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n— coppice/0123456789abcdef o5uZuDpzPmvVYrL9X7wEqtnni1v0Aw0NyDE4+7+2a/lJqKZRV9HQmtc2itIf1xn3pWGPtMRqKLN3AJxfigIY0ivk7wc=\n", "keys": []any{"coppice/0123456789abcdef+a39b99b8+Aakqf1VTnh755Lv9XzL/6Y1Jdn7LXb/c/BhNf12wwLBi"}}},
		"witnessLedger": {"All witnesses that are named must have signed. It is in bundles that are exported from then on.",
			obj{"checkpoint": "coppice/0123456789abcdef\n1\nnot the root of a log\n\n— witness.example bm8gc2lnbmF0dXJl\n", "keys": []any{"witness.example+01234567+BA=="}}},
		"ledgerCheckpoint": say("To be kept elsewhere: a log that does not grow from it is another one."),
		"netWhy":           say("By the policy in force, and by name: no name is looked up, and nothing is connected to. A name whose address turns out to be of no public network is denied even so, unless a rule names that address."),
		"netAllow": {"What a rule denies stays denied, whatever another allows. Connections that are open are ended where they are denied from now on. With for_ms the rules end by themselves; else they are for good. A token for some sandboxes can deny, and not allow.",
			obj{"allow": []any{"example.com:443"}, "for_ms": 600000}},
		"netAsking": say("Of a sandbox that is live and whose policy has people asked; else there is nothing. What nobody answers in time is denied."),
		"netApprove": {"The rules are added as netAllow does, and settled is what waited for them. They count from then on also for what did not wait, or waits no longer. A token for some sandboxes cannot approve.",
			obj{"rules": []any{"example.com:443"}, "for_ms": 600000}},
		"netDeny": {"As netAllow with deny, and settled is what waited for it: it is not asked about any more.", obj{"rules": []any{"tracker.example.com"}}},

		"gitDiff":  say("By its commits, and by what is not committed. Both become commits of the repository, which references below refs/coppice/ hold. Marked is what the host would later run or trust." + starts),
		"gitPatch": say("A patch that git applies. Names in it have no control bytes; contents are as they are." + starts),
		"gitApply": {"One commit on the branch that is checked out, unless it says another way or branch. A conflict, a change of yours that is not committed, or a mark that is not trusted ends it with nothing touched. Work makes sure that it is what was looked at. A token for some sandboxes cannot apply." + starts,
			obj{"way": "squash", "message": "Check the token's age", "trust": []any{"Makefile"}}},
		"propose": {"What is not committed becomes a commit; coppice/NAME is set to it, in the repository of the daemon's host. With guard, marks that nobody has looked at are denied." + starts,
			obj{"title": "Refuse empty tokens", "tests": []any{"make test"}}},
		"exportProposal": say("A tar archive of report.md, change.patch, policy.yaml, ledger.bundle and proposal.json."),
		"rebase": {"By its own git, onto the tip of the branch that it came from, unless onto says another. Conflicts are an error, and the sandbox is as it was; unless they are to be kept, in the middle of the rebase. Something that runs in it is a conflict as well." + starts,
			obj{"onto": "main"}},
		"trial": {"How the command ends is told, and no error. It ends with the request.", obj{"cmd": "true"}},

		"events":        say("From now on, unless after or Last-Event-ID says from where. A token for some sandboxes hears of those alone."),
		"sandboxEvents": say("From now on, unless after or Last-Event-ID says from where."),
	}
}
