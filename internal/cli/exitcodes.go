package cli

import "github.com/coppice-dev/coppice/internal/fault"

// Exit codes of commands other than exec, run, shell, attach and tournament, which exit with the code of their
// command.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitDenied      = 5
	exitUnsupported = 6
	exitUnavailable = 7
	exitLimit       = 8
	exitCorrupt     = 9
	exitTimeout     = 124 // of a command of a sandbox
	exitOurs        = 125 // an error of Coppice, where other codes are those of the sandbox's command
	exitCancelled   = 130 // 128 + SIGINT
)

// usual is the section "Exit codes" in the help of most commands.
const usual = `  0  done
  1  failed; for 3 to 9 and 130 see "coppice help exit-codes"
  2  the command line or a value in it is invalid`

// exitCodesHelp is the help topic exit-codes.
const exitCodesHelp = `Exit codes of coppice, by the kind of the failure, which --json prints as
"kind":

    0  done
    1  internal, or the command found what it looks for (see its help)
    2  invalid: the command line, a value in it, or a file is invalid
    3  not_found, ambiguous: no such sandbox, snapshot, tag or file
    4  exists, conflict: the name is taken, or another operation is in progress
    5  denied: a policy, a token or the owner does not allow it
    6  unsupported, version: this host or this build cannot do it
    7  unavailable, timeout: the daemon, a monitor or the network did not answer
    8  no_space, read_only, too_large: a disk, a quota or a limit is exhausted
    9  corrupt: stored data fails its check, or "system verify" found damage
  130  cancelled: interrupted by Ctrl-C

exec, run, shell, attach and tournament exit with the code of their command, and
with 125 if Coppice fails; see their help.
`

// exitCodeOf returns the exit code for an error of kind k.
func exitCodeOf(k fault.Kind) int {
	switch k {
	case fault.Invalid:
		return exitUsage
	case fault.NotFound, fault.Ambiguous:
		return exitNotFound
	case fault.Exists, fault.Conflict:
		return exitConflict
	case fault.Denied:
		return exitDenied
	case fault.Unsupported, fault.Version:
		return exitUnsupported
	case fault.Unavailable, fault.Timeout:
		return exitUnavailable
	case fault.NoSpace, fault.ReadOnly, fault.TooLarge:
		return exitLimit
	case fault.Corrupt:
		return exitCorrupt
	case fault.Cancelled:
		return exitCancelled
	default:
		return exitError // internal, or a kind of a newer daemon
	}
}
