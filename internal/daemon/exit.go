package daemon

import "strconv"

// ExitError means that a daemon that ran as a child of this process has failed, and has reported the reason
// itself.
type ExitError struct{ Code int }

// Error returns a text with the exit code.
func (e *ExitError) Error() string { return "the daemon exited with exit code " + strconv.Itoa(e.Code) }
