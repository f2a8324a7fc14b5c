package httpapi

import (
	"maps"
	"strings"
)

// about is the description of an operation beyond its summary: a sentence or two, and an example of a valid request,
// if it has a body.
type about struct {
	text    string
	example any
}

// object is a JSON object of an example.
type object = map[string]any

// says returns an about without an example.
func says(text string) about { return about{text: text} }

// startsIt is added to operations that need a live sandbox.
const startsIt = " Starts a stopped sandbox."

// aboutOperations returns the descriptions of all operations, by ID. A test fails for an operation without one,
// and sends the examples to a real daemon.
func aboutOperations() map[string]about {
	all := map[string]about{}
	for _, part := range aboutByTag() {
		maps.Copy(all, part)
	}
	return all
}

// aboutByTag returns the parts of aboutOperations, by tag. No operation is in two of them.
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
		"healthz": says("Liveness: a daemon that does not answer must be restarted. Requires no token."),
		"readyz": says("Readiness: the store is open and recovered, the storage driver works, and the daemon is not " +
			"stopping. Otherwise the response is 503; the reason is in the log. Requires no token."),
		"ping":    says("The response is empty: the daemon is ready and the token is valid."),
		"metrics": says("Requests, sandboxes, events and bytes, in the Prometheus text format."),
		"openapi": says("OpenAPI 3.1, generated from the operations of this server. Requires no token."),
		"docs":    says("Loads nothing from other servers. Requires no token."),
		"status":  says("Version, home and listen addresses."),
		"probe":   says("Tiers, drivers and features, each tested, with a remedy for those that are missing."),
		"gc": {
			text: "Deletes layers that no snapshot needs, forks of finished tournaments and, with keep, old " +
				"snapshots. With Accept: application/x-ndjson, the response starts with progress, one Event per line.",
			example: object{"dry_run": true},
		},
		"diskUse": says("The blocks of all files of the home, by what they are for; a file of several names counts once. " +
			"No lock is held, and nothing is changed. A token for some sandboxes cannot use it. With Accept: " +
			"application/x-ndjson, the response starts with progress, one Event per line."),
		"verifyAll": says("Rehashes all stored data. Damage is a result, not an error. With Accept: " +
			"application/x-ndjson, the response starts with progress, one Event per line."),
		"listTokens": says("Oldest first."),
		"createToken": {
			text:    "The secret is stored as a hash and cannot be shown again.",
			example: object{"name": "ci", "scope": "operate"},
		},
		"revokeToken": says("Closes the streams and command connections that were opened with it; commands continue."),
	}
}

func aboutSandboxes() map[string]about {
	return map[string]about{
		"listSandboxes": says("Filters of the same key are alternatives; filters of different keys must all be satisfied. " +
			"A token for some sandboxes lists only those."),
		"createSandbox": {
			text: "The base is the host unless the request names another; the host is not copied. An archive is sent as " +
				"multipart/form-data, after the request. Does not start the sandbox.",
			example: object{"name": "web-1"},
		},
		"getSandbox": says("Its configuration, its protections and the size of its history. Does not start it."),
		"getPolicy": says("The policy in canonical form, and as lines. It includes temporary rules; base is the " +
			"policy without temporary rules."),
		"removeSandbox": says("Shared layers remain. Without force, a sandbox with running commands is a conflict."),
		"updateSandbox": {"Omitted fields do not change.", object{"idle_stop_ms": 600000}},
		"startSandbox": says("Starts the supervised command again if there is one, regardless of its restart policy. A " +
			"sandbox " +
			"without one is made ready for commands, and becomes idle after 30 seconds without a process. A running " +
			"sandbox does not change. Other operations start a sandbox automatically."),
		"stopSandbox": says("Sends SIGTERM, and SIGKILL after five seconds. A supervised " +
			"command is not restarted automatically."),
		"pauseSandbox": says("Processes stay paused until they are resumed, also after the daemon exits. Snapshots can be " +
			"taken meanwhile; commands are a conflict. A stopped sandbox is a " +
			"conflict, too. Not in tier workspace."),
		"resumeSandbox": says("A sandbox that is not paused does not change. In a quarantined fork with memory, the " +
			"failed step and those after it are repeated, and its gate opens when all have succeeded."),
		"forkSandbox": {
			text: "The time does not depend on the size of the sandbox. With memory, the " +
				"processes continue in each fork, whose gate opens when the fork is re-keyed; a fork for " +
				"which re-keying fails is quarantined.",
			example: object{"n": 2},
		},
		"tournament": {
			text: "Each candidate runs in its own fork, then the test. The first that passes wins; with score, the " +
				"one with the best score. With Accept: application/x-ndjson, the response starts with progress, one Event per " +
				"line. It ends with " +
				"the request.",
			example: object{"test": "test -e done", "candidates": []any{object{"cmd": "touch done"}, object{"cmd": "false"}}},
		},
		"openSocket": says("It exists until it is closed or the sandbox is removed. " +
			"Opening it again returns the same path."),
		"closeSocket": says("Closing a socket that does not exist is not an error."),
		"trial": {"A failing command is a result, not an error. " +
			"The command ends with the request.", object{"cmd": "true"}},
	}
}

func aboutHistory() map[string]about {
	return map[string]about{
		"head":           says("Does not take a snapshot and does not start the sandbox."),
		"log":            says("Rows draw the history as git log --graph does. Does not start the sandbox."),
		"listSnapshots":  says("The same as log."),
		"branches":       says("The snapshots without children, newest first."),
		"show":           says("The changes against its parent, by path."),
		"deleteSnapshot": says("HEAD, the first snapshot and a snapshot of another sandbox are a conflict."),
		"diff": says("Without a and b, the changes since HEAD. With other, what differs in content, mode, owner or " +
			"attributes from a state of this sandbox to one of the other, which requires the scope for both. Two " +
			"sandboxes of which only one has the host as its base are not compared. With patch the response is text for " +
			"patch(1)."),
		"commit": {
			text: "If nothing has changed, no snapshot is taken and the response names HEAD. Processes are frozen " +
				"briefly. With memory, in tier gvisor, a snapshot is always taken, and the memory of the processes " +
				"is from the same moment as the files.",
			example: object{"message": "the tests pass"},
		},
		"createSnapshot": {"The same as commit, but for the status.", object{"message": "the tests pass"}},
		"mark": {
			text:    "For the steps of an agent: the text, which the field label has, becomes the message of snapshots.",
			example: object{"label": "before the upgrade"},
		},
		"checkout": {
			text: "The current state is captured first, so nothing is lost. Processes are stopped, and a supervised " +
				"command is started again; in place they continue. If the snapshot has " +
				"memory, its processes resume from it, unless files_only is set.",
			example: object{"node": "HEAD"},
		},
		"undo":      {"The current state is captured first; redo returns to it.", object{"n": 1}},
		"redo":      {"Without a previous undo, the error is not_found.", object{}},
		"listTags":  says("By name."),
		"setTag":    {"An existing tag is moved. A tagged snapshot is never deleted by gc.", object{"name": "good"}},
		"deleteTag": says("The snapshot remains."),
		"verify": says("Damage is a result, not an error. With Accept: application/x-ndjson " +
			"the response starts with progress, one Event per line."),
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
		"execOutput": says("From the beginning of the stored output, or from Last-Event-ID. Available for a minute after " +
			"the " +
			"exit, too. A token with the scope read is read-only: the command does not wait for it."),
		"execInput": says("For a command that was started with stdin or on a terminal. The response follows when the " +
			"command has " +
			"accepted all of it."),
		"signalExec": {
			text:    "Sent to the command's process group; on a terminal, INT goes to the foreground process group.",
			example: object{"name": "INT"},
		},
		"cancelExec":    says("The response is immediate; the exit is part of the output stream."),
		"attachSession": {"Sending input requires the scope operate.", object{"read_only": true}},
		"attach": says("Binary messages are the terminal's bytes, in both directions; text messages are TerminalControl " +
			"as JSON. " +
			"The last message of the server is the exit or an error. The token of " +
			"attachSession opens it, and no other is needed."),
		"listProcesses": says("A stopped sandbox has none and is not started."),
		"signalProcess": {"The default signal is TERM.", object{"name": "TERM"}},
		"listPorts":     says("A stopped sandbox has none and is not started."),
		"previewPort": {
			text:    "For a browser. The link gives access to the port until it expires.",
			example: object{"ttl_ms": 3600000},
		},
		"connectPort": says("Starts a stopped sandbox that has a supervised " +
			"command, which has ten seconds to listen."),
	}
}

func aboutFiles() map[string]about {
	return map[string]about{
		"readFile": says("Supports Range and If-None-Match." + startsIt + " Not with at."),
		"writeFile": says("The write is atomic, keeps the mode of the file that it replaces, and becomes a " +
			"snapshot." + startsIt),
		"removeFile":    says("A directory that is not empty requires recursive. The change becomes a snapshot." + startsIt),
		"statFile":      says("A symbolic link itself, unless follow is set." + startsIt + " Not with at."),
		"listFiles":     says("Parents before children, names in order." + startsIt + " Not with at."),
		"makeDirectory": {"The change becomes a snapshot." + startsIt, object{"path": "/src/new", "parents": true}},
		"moveFile": {
			text:    "As rename(2): an existing file is replaced. The change becomes a snapshot." + startsIt,
			example: object{"from": "/src/old.go", "to": "/src/new.go"},
		},
		"watchFiles": says("Until the client disconnects. The first event has no kind: from then on, no change is missed." +
			startsIt),
		"downloadFiles": says("A tar archive with paths relative to the directory, and with the owners and modes inside " +
			"the sandbox." +
			startsIt + " Not with at."),
		"uploadFiles": says("A tar archive, uncompressed or compressed with gzip or zstd. Paths outside the directory " +
			"are skipped. The change becomes one snapshot." + startsIt),
	}
}

func aboutNet() map[string]about {
	return map[string]about{
		"net": says("Oldest first: the newest 100 stored events, unless last or since selects others; for a running " +
			"sandbox " +
			"also its open connections. A sandbox without a gate has none. Does not start the sandbox."),
		"netEvents": says("New events, after those that last or since selects."),
		"netWhy": says("By the policy in force and by name, without a lookup or a connection. A name " +
			"that resolves to an address outside public networks is denied even so, unless a rule names that address."),
		"netAllow": {
			text: "Deny rules take precedence over allow rules. Open connections are closed if " +
				"a new rule denies them. With for_ms the rules expire; otherwise they are permanent. A token for " +
				"some sandboxes can add deny rules but not allow rules.",
			example: object{"allow": []any{"example.com:443"}, "for_ms": 600000},
		},
		"grants": says("By name, including those that are no longer live. Secrets are not part of the answer, only " +
			"the placeholders that stand for them in the sandbox. Does not start the sandbox."),
		"giveGrant": {
			text: "Replaces the sandbox's grant of that name. The broker must have the secret: coppice secret set. The " +
				"hosts must be allowed by the network rules as well. A running sandbox that was started without grants " +
				"and without grants_later must be stopped first.",
			example: object{"secret": "github-pat", "preset": "github", "for": "8h"},
		},
		"consent": {
			text: "The digests are those that the refusal of createSandbox names. A sandbox with these policy files then " +
				"gets the grants.",
			example: object{"policy": []any{object{"level": "project", "name": "/src/app/coppice.yaml",
				"text": "version: 1\nsecrets: {github: {paths: [/repos/acme/*]}}\n"}},
				"digests": []any{"sha256:" + strings.Repeat("0f", 32)}},
		},
		"revokeGrant": says("When the answer comes, no request carries the secret, and connections that used it are " +
			"closed. Has no effect on a grant that is not live."),
		"netAsking": says("Only for a running sandbox whose policy asks; otherwise the list is empty. A request " +
			"that is not answered in time is denied."),
		"netApprove": {
			text: "Adds the rules as netAllow does; settled lists the requests that they approved. The rules also " +
				"apply to later requests. A token for some sandboxes cannot approve.",
			example: object{"rules": []any{"example.com:443"}, "for_ms": 600000},
		},
		"netDeny": {
			text:    "As netAllow with deny; settled lists the requests that were denied.",
			example: object{"rules": []any{"tracker.example.com"}},
		},
	}
}

func aboutLedger() map[string]about {
	return map[string]about{
		"ledger": says("Oldest first. Name a removed sandbox by its id; \"host\" has the records that belong to no " +
			"sandbox. If " +
			"more is set, continue with from."),
		"ledgerEvents": says("Starts with the first record that the query selects, then follows new ones."),
		"inspectRecord": says("The records of the same command, a record that it did not happen, decisions about the " +
			"network and denials while it ran, and its captured output, in base64."),
		"ledgerBlob": says("The captured output of a command, redacted. It may hold any bytes."),
		"verifyLedger": {
			text: "A mismatch is an error of kind corrupt that names the first such record. A checkpoint proves " +
				"that the log was only appended to since.",
			example: object{},
		},
		"exportLedger": says("A tar archive that can be verified without this home, see docs/LEDGER.md."),
		"archiveLedger": {
			text:    "Only whole segments are compressed, never the newest. The operation is recorded.",
			example: object{"before": "2026-01-02T15:04:05Z"},
		},
		"cosignLedger": {
			text: "As a witness, if the log grew from the checkpoint that this host cosigned last. A log that was " +
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
			text: "All witnesses named must have signed. Later bundles include it.",
			example: object{
				"checkpoint": "coppice/0123456789abcdef\n1\nnot the root of a log\n\n" +
					"— witness.example bm8gc2lnbmF0dXJl\n",
				"keys": []any{"witness.example+01234567+BA=="},
			},
		},
		"ledgerCheckpoint": says("Store it elsewhere: a log that did not grow from it was replaced."),
	}
}

func aboutGit() map[string]about {
	return map[string]about{
		"gitDiff": says("Its commits and its uncommitted changes. Both become commits of the repository, which " +
			"references below refs/coppice/ hold. Marked lists files that the host would later run or trust. With pending, " +
			"a file is left out if the branch that is checked out has the same content and mode, or lacks it, too; of any " +
			"other file, all that changed since the start is shown." + startsIt),
		"gitPatch": says("A patch for git apply. Names have no control bytes; contents are unchanged." +
			startsIt),
		"gitApply": {
			text: "One commit on the branch that is checked out, unless the request names another mode or branch. A " +
				"conflict, an " +
				"uncommitted change in the repository or an untrusted mark is an error, and nothing is changed. Work " +
				"requires that the sandbox has not changed since that diff. A token for some sandboxes cannot apply." + startsIt,
			example: object{"way": "squash", "message": "Check the token's age", "trust": []any{"Makefile"}},
		},
		"propose": {
			text: "Uncommitted changes become a commit; the branch coppice/NAME is set to it, in the repository on the " +
				"daemon's " +
				"host. With guard, untrusted marks are denied." + startsIt,
			example: object{"title": "Refuse empty tokens", "tests": []any{"make test"}},
		},
		"exportProposal": says("A tar archive of report.md, change.patch, policy.yaml, ledger.bundle and proposal.json."),
		"rebase": {
			text: "With git inside the sandbox, onto the tip of the branch that it came from, unless onto names another " +
				"commit. Conflicts are " +
				"an error, and the sandbox does not change, unless they are to be kept in the middle of the rebase. A process " +
				"that runs in the sandbox is a conflict as well." + startsIt,
			example: object{"onto": "main"},
		},
		"sending": {
			text: "Requires a proposal. The push must require the references that the remote had when last seen: " +
				"git push --force-with-lease.",
			example: object{"name": "fix-auth", "remote": "origin"},
		},
		"packedLayers": says("The layers above the snapshot that the sandbox started from, each with its digest and size " +
			"when " +
			"it was last packed. For sandboxes with the host as base."),
		"packLayer": {
			text: "For a registry; with git, send packs it. The client need not verify it: the request names its digest " +
				"before " +
				"packing.",
			example: object{
				"name":  "fix-auth",
				"layer": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			},
		},
		"unpackLayers": says("Each layer is imported after its digest was compared with the proposal. Either all " +
			"layers are imported, or none."),
		"sent": {
			text: "The next push requires these references on the remote.",
			example: object{
				"dir": "/srv/app", "remote": "origin", "name": "web-1",
				"refs": []any{object{
					"ref": "refs/heads/coppice/web-1", "to": "1111111111111111111111111111111111111111",
				}},
			},
		},
		"receive": {
			text: "Of the references that the user's git fetched below refs/coppice/staging/REMOTE/NAME. " +
				"An invalid proposal is not stored.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"listProposals": says("The proposals that were pulled into it or pushed from it."),
		"showProposal": {
			text:    "Verifies objects, branch, ledger and signer again.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"diffProposal": {
			text:    "Against the commit that the proposer's sandbox started from. The proposal is verified again first.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"patchProposal": {
			text:    "Names have no control bytes; contents are unchanged.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
		"applyProposal": {
			text:    "With the modes of gitApply, and refused for the same reasons.",
			example: object{"dir": "/srv/app", "remote": "origin", "name": "web-1"},
		},
	}
}

func aboutEvents() map[string]about {
	return map[string]about{
		"events": says("New events, unless after or Last-Event-ID names a start. A token for some " +
			"sandboxes receives only their events."),
		"sandboxEvents": says("New events, unless after or Last-Event-ID names a start."),
	}
}
