package cli

import (
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/probe"
)

// reexec runs what a re-executed process is, by argv[0]; ok is false for the
// command line. It comes before everything else: a keeper or init that started
// slowly would make every sandbox slow.
func reexec(args []string) (code int, ok bool) {
	if ok, code := box.Dispatch(args); ok {
		return code, true
	}
	if ok, code := probe.Dispatch(args); ok {
		return code, true
	}
	return 0, false
}
