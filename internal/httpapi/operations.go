package httpapi

import "maps"

// about is what is said of an operation beyond its summary: a sentence or two, and a
// request that works as it stands, where there is one to send.
type about struct {
	text    string
	example any
}

// object is a JSON object of an example.
type object = map[string]any

// says is about without an example.
func says(text string) about { return about{text: text} }

// startsIt is said of operations that need a live sandbox.
const startsIt = " A sandbox that is stopped is started."

// aboutOperations are those of all operations, by id. A test misses those that are
// not here, and sends the examples to a real daemon.
func aboutOperations() map[string]about {
	all := map[string]about{}
	for _, part := range aboutByTag() {
		maps.Copy(all, part)
	}
	return all
}

// aboutByTag are the parts of aboutOperations, by the tag of the operations. No operation
// is in two of them.
func aboutByTag() map[string]map[string]about {
	return map[string]map[string]about{
		tagDaemon:    aboutDaemon(),
		tagSandboxes: aboutSandboxes(),
		tagHistory:   aboutHistory(),
		tagExec:      aboutExec(),
		tagFiles:     aboutFiles(),
		tagNet:       aboutNet(),
		tagLedger:    aboutLedger(),
		tagGit:       aboutGit(),
		tagEvents:    aboutEvents(),
	}
}

func aboutDaemon() map[string]about {
	return map[string]about{
		"healthz": says("For load balancers and supervisors. Needs no token."),
		"ping":    says("Answers with nothing: the daemon is there, and the token is good."),
		"metrics": says("Requests, sandboxes, events and bytes, in the text format of Prometheus."),
		"openapi": says("OpenAPI 3.1, made of the operations as they are served. Needs no token."),
		"docs":    says("Works without any network but the daemon's. Needs no token."),
		"status":  says("Version, home, and where it listens."),
		"probe":   says("Tiers, drivers and features, each tried out, with what mends those that are missing."),
		"gc": {
			text: "Drops the layers that no snapshot needs, the forks of ended tournaments, and, with keep, old " +
				"snapshots. With Accept: application/x-ndjson progress comes first, an Event a line.",
			example: object{"dry_run": true},
		},
		"verifyAll": says("Hashes all that is stored anew. Damage is a result, not an error. With Accept: " +
			"application/x-ndjson progress comes first, an Event a line."),
		"listTokens": says("Oldest first."),
		"createToken": {
			text:    "The secret is kept as a hash alone, and cannot be told again.",
			example: object{"name": "ci", "scope": "operate"},
		},
		"revokeToken": says("Streams and commands' connections that were opened with it are closed; commands run on."),
	}
}

func aboutSandboxes() map[string]about {
	return map[string]about{
		"listSandboxes": says("A token for some sandboxes sees those alone."),
		"createSandbox": {
			text: "From the host itself unless it is told otherwise: nothing is copied then. An archive is sent as " +
				"multipart/form-data, the request before it. Nothing is started.",
			example: object{"name": "web-1"},
		},
		"getSandbox": says("What it is, what confines it, and what its history takes. Nothing is started."),
		"getPolicy": says("Its canonical text, and the same in lines. Rules that hold for a time are in it; base is the " +
			"policy without them."),
		"removeSandbox": says("Layers that others share stay. One in which commands run is a conflict without force."),
		"updateSandbox": {"What is left out stays as it is.", object{"idle_stop_ms": 600000}},
		"startSandbox": says("The supervised command starts again where there is one, whatever its restart policy. One " +
			"without it is made ready for commands, and goes idle after half a minute without a process. What runs " +
			"already is left alone. Other operations start a sandbox by themselves."),
		"stopSandbox": says("SIGTERM, and SIGKILL after five seconds. A supervised command is not started again by itself."),
		"pauseSandbox": says("They stand still until they are resumed, also when the daemon ends; snapshots can be " +
			"taken, and commands are a conflict meanwhile. A sandbox that is not live is a conflict, too. Not in tier " +
			"workspace."),
		"resumeSandbox": says("What is not paused stays as it is. In a fork with memory that is quarantined, what " +
			"failed and what comes after it is done again, and its gate opens when all is done."),
		"forkSandbox": {
			text: "A fork takes the same time however large the sandbox is, and goes its own way from there. With memory " +
				"its processes go on in each fork, whose gate opens when it has an identity of its own; one for which that " +
				"fails is quarantined.",
			example: object{"n": 2},
		},
		"tournament": {
			text: "Each candidate runs in a fork of its own, then the test. The first that passes wins, or with score the " +
				"one with the best. With Accept: application/x-ndjson progress comes first, an Event a line. It ends with " +
				"the request.",
			example: object{"test": "test -e done", "candidates": []any{object{"cmd": "touch done"}, object{"cmd": "false"}}},
		},
		"openSocket":  says("It is there until it is closed, or the sandbox removed; opening it again gives the same path."),
		"closeSocket": says("That there is none is no error."),
		"trial":       {"How the command ends is told, and no error. It ends with the request.", object{"cmd": "true"}},
	}
}

func aboutHistory() map[string]about {
	return map[string]about{
		"head":           says("Takes no snapshot, and starts nothing."),
		"log":            says("Rows draw it as git log --graph does. Starts nothing."),
		"listSnapshots":  says("The same as log."),
		"branches":       says("Those that have no snapshot after them, newest first."),
		"show":           says("Its changes against its parent, by path."),
		"deleteSnapshot": says("HEAD, the first snapshot, and one that another sandbox made are a conflict."),
		"diff": says("Without a and b, what has changed since HEAD. With patch" +
			" it is text, for people and for patch(1)."),
		"commit": {
			text: "Nothing is recorded when nothing has changed, and the answer names HEAD. Processes are stopped for the " +
				"blink of an eye, and run on. With memory, in tier gvisor, there is always a snapshot, and what processes " +
				"have in memory is of the same moment as its files.",
			example: object{"message": "the tests pass"},
		},
		"createSnapshot": {"The same as commit, but for the status.", object{"message": "the tests pass"}},
		"mark": {
			text:    "For what an agent is about to do, or has done: the label becomes the message of snapshots.",
			example: object{"label": "before the upgrade"},
		},
		"checkout": {
			text: "The present is kept as a snapshot first, so nothing is lost. Processes are stopped, and a supervised " +
				"command is started again there; in place they run on. Where the snapshot has what its processes had in " +
				"memory, they go on from there, unless it is the files only.",
			example: object{"node": "HEAD"},
		},
		"undo":      {"The present is kept first; redo comes back to it.", object{"n": 1}},
		"redo":      {"Without an undo to take back it is not_found.", object{}},
		"listTags":  says("By name."),
		"setTag":    {"One that is there moves. A tagged snapshot is never dropped by gc.", object{"name": "good"}},
		"deleteTag": says("The snapshot stays."),
		"verify": says("Damage is a result, not an error. With Accept: application/x-ndjson progress comes first, an " +
			"Event a line."),
	}
}

func aboutExec() map[string]about {
	return map[string]about{
		"exec": {
			text: "Output comes as Server-Sent Events, at the pace that it is read. The command runs on when the client " +
				"goes away, and execOutput resumes it. What it changed becomes a snapshot, which the exit names." + startsIt,
			example: object{"cmd": []any{"echo", "hello"}},
		},
		"run": {
			text: "It belongs to the sandbox and not to the request; there is one at a time, and another is a conflict. " +
				"Snapshots are taken while it works." + startsIt,
			example: object{"cmd": []any{"sleep", "60"}},
		},
		"listExecs": says("Those of every client. Starts nothing."),
		"execOutput": says("From the beginning of what is kept, or where Last-Event-ID says. For a minute after the " +
			"end, too. A token with the scope read looks on: the command does not wait for it."),
		"execInput": says("For a command that was started with stdin, or on a terminal. Answers when the command has " +
			"taken it all."),
		"signalExec": {
			text:    "It reaches the command's process group; on a terminal, INT reaches the one in the foreground.",
			example: object{"name": "INT"},
		},
		"cancelExec":    says("Answers at once; the exit comes in its output."),
		"attachSession": {"To type, and not to look on alone, needs the scope operate.", object{"read_only": true}},
		"attach": says("Binary messages are the terminal's bytes, both ways; text messages are TerminalControl as JSON. " +
			"The last one of the server's is the exit, or an error. The token of attachSession opens it, and no other is " +
			"needed."),
		"listProcesses": says("A sandbox that is stopped has none, and stays so."),
		"signalProcess": {"TERM, unless it says another.", object{"name": "TERM"}},
		"listPorts":     says("A sandbox that is stopped has none, and stays so."),
		"previewPort": {
			text:    "For a browser: whoever has the link may use that port until it expires.",
			example: object{"ttl_ms": 3600000},
		},
		"connectPort": says("A sandbox that is stopped is started when it has a supervised command, which has ten " +
			"seconds to listen."),
	}
}

func aboutFiles() map[string]about {
	return map[string]about{
		"readFile": says("Takes Range and If-None-Match." + startsIt + " With at nothing is."),
		"writeFile": says("It appears whole or not at all, keeps the mode of the file that it replaces, and becomes a " +
			"snapshot." + startsIt),
		"removeFile":    says("A directory that is not empty needs recursive. It becomes a snapshot." + startsIt),
		"statFile":      says("A link itself, unless it is to be followed." + startsIt + " With at nothing is."),
		"listFiles":     says("Parents before children, names in order." + startsIt + " With at nothing is."),
		"makeDirectory": {"It becomes a snapshot." + startsIt, object{"path": "/src/new", "parents": true}},
		"moveFile": {
			text:    "As rename(2): a file that is there is replaced. It becomes a snapshot." + startsIt,
			example: object{"from": "/src/old.go", "to": "/src/new.go"},
		},
		"watchFiles": says("From now on, until the client goes. The first event has no kind: nothing is missed any more." +
			startsIt),
		"downloadFiles": says("A tar archive with paths beneath the directory, owners and modes as they are inside." +
			startsIt + " With at nothing is."),
		"uploadFiles": says("A tar archive, plain or compressed by gzip or zstd. Paths that lead out of the directory " +
			"are left out. It becomes one snapshot." + startsIt),
	}
}

func aboutNet() map[string]about {
	return map[string]about{
		"net": says("Oldest first: the newest 100 that are kept, unless last or since says which; of a sandbox that is " +
			"live also what is open now. One whose network nothing decides about has none. Nothing is started."),
		"netEvents": says("From now on, after those that last or since asks for."),
		"netWhy": says("By the policy in force, and by name: no name is looked up, and nothing is connected to. A name " +
			"whose address turns out to be of no public network is denied even so, unless a rule names that address."),
		"netAllow": {
			text: "What a rule denies stays denied, whatever another allows. Connections that are open are ended where " +
				"they are denied from now on. With for_ms the rules end by themselves; else they are for good. A token for " +
				"some sandboxes can deny, and not allow.",
			example: object{"allow": []any{"example.com:443"}, "for_ms": 600000},
		},
		"netAsking": says("Of a sandbox that is live and whose policy has people asked; else there is nothing. What " +
			"nobody answers in time is denied."),
		"netApprove": {
			text: "The rules are added as netAllow does, and settled is what waited for them. They count from then on " +
				"also for what did not wait, or waits no longer. A token for some sandboxes cannot approve.",
			example: object{"rules": []any{"example.com:443"}, "for_ms": 600000},
		},
		"netDeny": {
			text:    "As netAllow with deny, and settled is what waited for it: it is not asked about any more.",
			example: object{"rules": []any{"tracker.example.com"}},
		},
	}
}

func aboutLedger() map[string]about {
	return map[string]about{
		"ledger": says("Oldest first. Of a sandbox that was removed by its id; \"host\" has what belongs to none. Where " +
			"more is set, go on with from."),
		"ledgerEvents": says("From the first that is asked for on."),
		"inspectRecord": says("Those of the same command, what tells that it did not come about, decisions about the " +
			"network and denials while it ran, and what was kept of its output, in base64."),
		"ledgerBlob": says("What was kept of a command's output, redacted, as it was written: its bytes may be anything."),
		"verifyLedger": {
			text: "What does not fit is an error of kind corrupt that names the first such record. A checkpoint proves " +
				"that the log only grew since.",
			example: object{},
		},
		"exportLedger": says("A tar archive that is verified without Coppice's files, by docs/LEDGER.md."),
		"archiveLedger": {
			text:    "Whole segments alone are compressed, and never the newest. It is recorded.",
			example: object{"before": "2026-01-02T15:04:05Z"},
		},
		"cosignLedger": {
			text: "As a witness, where the log grew from the checkpoint that this host cosigned last. A log that was " +
				"rolled back is refused.",
			example: object{
				"checkpoint": "old 0\n\n" +
					"coppice/0123456789abcdef\n1\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n\n" +
					"— coppice/0123456789abcdef o5uZuDpzPmvVYrL9X7wEqtnni1v0Aw0NyDE4+7+2a/lJqKZRV9HQmtc2itIf1xn3pWGPtMRqKLN3" +
					"AJxfigIY0ivk7wc=\n",
				"keys": []any{"coppice/0123456789abcdef+a39b99b8+Aakqf1VTnh755Lv9XzL/6Y1Jdn7LXb/c/BhNf12wwLBi"},
			},
		},
		"witnessLedger": {
			text: "All witnesses that are named must have signed. It is in bundles that are exported from then on.",
			example: object{
				"checkpoint": "coppice/0123456789abcdef\n1\nnot the root of a log\n\n" +
					"— witness.example bm8gc2lnbmF0dXJl\n",
				"keys": []any{"witness.example+01234567+BA=="},
			},
		},
		"ledgerCheckpoint": says("To be kept elsewhere: a log that does not grow from it is another one."),
	}
}

func aboutGit() map[string]about {
	return map[string]about{
		"gitDiff": says("By its commits, and by what is not committed. Both become commits of the repository, which " +
			"references below refs/coppice/ hold. Marked is what the host would later run or trust." + startsIt),
		"gitPatch": says("A patch that git applies. Names in it have no control bytes; contents are as they are." +
			startsIt),
		"gitApply": {
			text: "One commit on the branch that is checked out, unless it says another way or branch. A conflict, a " +
				"change of yours that is not committed, or a mark that is not trusted ends it with nothing touched. Work " +
				"makes sure that it is what was looked at. A token for some sandboxes cannot apply." + startsIt,
			example: object{"way": "squash", "message": "Check the token's age", "trust": []any{"Makefile"}},
		},
		"propose": {
			text: "What is not committed becomes a commit; coppice/NAME is set to it, in the repository of the daemon's " +
				"host. With guard, marks that nobody has looked at are denied." + startsIt,
			example: object{"title": "Refuse empty tokens", "tests": []any{"make test"}},
		},
		"exportProposal": says("A tar archive of report.md, change.patch, policy.yaml, ledger.bundle and proposal.json."),
		"rebase": {
			text: "By its own git, onto the tip of the branch that it came from, unless onto says another. Conflicts are " +
				"an error, and the sandbox is as it was; unless they are to be kept, in the middle of the rebase. Something " +
				"that runs in it is a conflict as well." + startsIt,
			example: object{"onto": "main"},
		},
		"sending": {
			text: "The proposal is made by propose before. What the remote had when it was last seen is to be held to: " +
				"git push --force-with-lease.",
			example: object{"name": "fix-auth", "remote": "origin"},
		},
		"packedLayers": says("Those above what the sandbox began with, each with the digest and size that it had when " +
			"it was packed last. For sandboxes on the host."),
		"packLayer": {
			text: "For a registry: git has it packed by sending. Who asks checks nothing: its digest before packing is " +
				"what it was asked for by.",
			example: object{
				"name":  "fix-auth",
				"layer": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			},
		},
		"unpackLayers": says("Each layer is imported after its digest was checked by what the proposal says. Either all " +
			"of it is there then, or nothing."),
		"sent": {
			text: "So that the next push knows what the remote has.",
			example: object{
				"dir": "/srv/app", "remote": "origin", "name": "web-1",
				"refs": []any{object{
					"ref": "refs/heads/coppice/web-1", "to": "1111111111111111111111111111111111111111",
				}},
			},
		},
		"receive": {
			text: "Of what the user's git has fetched below refs/coppice/staging/REMOTE/NAME. What is wrong with it " +
				"leaves nothing behind.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"listProposals": says("Those that were pulled into it, and those that were pushed from it."),
		"showProposal": {
			text:    "Objects, branch, ledger and signer, as when it was taken in.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"diffProposal": {
			text:    "Against what the proposer's sandbox began with. It is checked anew first.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"patchProposal": {
			text:    "Names in it have no control bytes; contents are as they are.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"applyProposal": {
			text:    "In the ways of gitApply, and refused for the same reasons.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
	}
}

func aboutEvents() map[string]about {
	return map[string]about{
		"events": says("From now on, unless after or Last-Event-ID says from where. A token for some sandboxes hears of " +
			"those alone."),
		"sandboxEvents": says("From now on, unless after or Last-Event-ID says from where."),
	}
}
