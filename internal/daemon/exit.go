package daemon

import "strconv"

// ExitError says that a daemon which ran in this one's stead has failed, and has
// said why itself.
type ExitError struct{ Code int }

// Error gives the exit code.
func (e *ExitError) Error() string { return "the daemon exited with exit code " + strconv.Itoa(e.Code) }
