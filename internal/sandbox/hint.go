package sandbox

import (
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Named returns err with the name of a sandbox in place of NAME in its hint. A box does not know the name of its
// sandbox when it writes a hint.
func Named(err error, name string) error {
	if hint := fault.HintOf(err); strings.Contains(hint, "NAME") {
		return &fault.Error{Kind: fault.KindOf(err), Hint: strings.ReplaceAll(hint, "NAME", name), Err: err}
	}
	return err
}

// NotLive returns the error of an operation that needs running processes, for a sandbox without any. why names the
// operation.
func NotLive(name, why string) *fault.Error {
	return fault.New(fault.Conflict, "sandbox %s is not running: %s", name, why).
		WithHint("start a command in it: coppice run --in %s --detach -- CMD", name)
}
