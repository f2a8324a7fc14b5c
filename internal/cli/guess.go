package cli

// guesses returns the commands that a user who types word after "coppice AT" probably means: word is a name from
// another program, or a subcommand without its group.
func guesses(at, word string) []string {
	switch at {
	case "":
		return topGuesses()[word]
	case "net":
		if meant := map[string]string{"ls": "log", "list": "log", "port": "forward", "ports": "forward",
			"reject": "deny"}[word]; meant != "" {
			return []string{"net " + meant}
		}
	case "ledger":
		if meant := map[string]string{"log": "show", "ls": "show", "list": "show", "inspect": "show",
			"diff": "compare"}[word]; meant != "" {
			return []string{"ledger " + meant}
		}
	case "process":
		return map[string][]string{"ps": {"process ls"}, "signal": {"process kill"}, "stop": {"process kill", "stop"},
			"show": {"process inspect"}, "freeze": {"process pause"}, "unpause": {"process resume"}}[word]
	case "snapshot":
		return map[string][]string{"commit": {"snapshot create"}, "new": {"snapshot create"},
			"save": {"snapshot create"}, "delete": {"snapshot rm"}, "remove": {"snapshot rm"}, "ls": {"log"},
			"list": {"log"}, "log": {"log"}, "restore": {"rewind"}, "rewind": {"rewind"}, "checkout": {"rewind"},
			"label": {"snapshot mark"}, "inspect": {"snapshot show"}, "diff": {"diff"}}[word]
	case "git":
		return map[string][]string{"diff": {"diff"}, "log": {"log"}, "status": {"diff"}, "merge": {"git apply"},
			"fetch": {"git pull"}, "commit": {"git apply", "snapshot create"}, "checkout": {"rewind"},
			"clone": {"create --repo"}}[word]
	case "system":
		return map[string][]string{"prune": {"system gc"}, "fsck": {"system verify"}, "check": {"system verify"},
			"info": {"status", "system probe"}, "df": {"status"}, "doctor": {"system probe"},
			"log": {"system events"}}[word]
	}
	return nil
}

// shows returns the command that shows the data of the group at about a sandbox: a word after the group that
// resembles no subcommand is probably the name of a sandbox.
func shows(at, word string) []string {
	if show := map[string]string{"net": "net log", "ledger": "ledger show"}[at]; show != "" {
		return []string{show + " " + word}
	}
	return nil
}

// topGuesses returns the guesses for words directly after "coppice".
func topGuesses() map[string][]string {
	return map[string][]string{
		"allow": {"net allow"}, "deny": {"net deny"}, "approve": {"net approve"}, "why": {"net why"},
		"port": {"net forward"}, "ports": {"net forward"}, "forward": {"net forward"}, "network": {"net log"},

		"apply": {"git apply"}, "propose": {"git propose"}, "push": {"git push"}, "pull": {"git pull"},
		"rebase": {"git rebase"}, "pr": {"git pr"}, "merge": {"git apply"},

		"ps": {"process ls"}, "top": {"process ls"}, "kill": {"process kill"}, "pause": {"process pause"},
		"resume": {"process resume"}, "unpause": {"process resume"}, "inspect": {"status", "process inspect"},

		"commit": {"snapshot create"}, "checkpoint": {"snapshot create --memory"}, "save": {"snapshot create"},
		"delete": {"rm", "snapshot rm"}, "branches": {"snapshot branches"}, "branch": {"snapshot branches", "fork"},
		"head": {"snapshot head"}, "show": {"snapshot show"}, "tag": {"snapshot tag"}, "mark": {"snapshot mark"},
		"label": {"update"},

		"compare": {"ledger compare"}, "audit": {"ledger show"}, "export": {"ledger export"},
		"watch": {"log --follow"}, "events": {"system events"},
		"gc": {"system gc"}, "prune": {"system gc"}, "verify": {"system verify"}, "fsck": {"system verify"},
		"probe": {"system probe"}, "doctor": {"system probe"}, "info": {"status", "system probe"},
		"man": {"system man"}, "socket": {"system socket"}, "completion": {"system completion"},
		"version": {"system version"},

		"history": {"log"}, "logs": {"log", "attach"}, "rollback": {"rewind", "undo"}, "revert": {"undo", "rewind"},
		"restore": {"rewind"}, "reset": {"rewind"}, "goto": {"rewind"}, "destroy": {"rm"}, "drop": {"rm"},
		"init": {"create", "policy init"}, "new": {"create"}, "up": {"create", "run"}, "clone": {"fork"},
		"copy": {"cp", "fork"}, "connect": {"shell", "attach"}, "ssh": {"shell"}, "enter": {"shell"},
		"login": {"shell"}, "daemon": {"serve"}, "set": {"update"}, "config": {"update", "policy show"},
	}
}
