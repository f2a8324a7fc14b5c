//go:build linux && (amd64 || arm64)

package guest

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/refusals"
)

// countRefusals starts to summarize refused calls, with the tally at fd, which it closes.
func (d *daemon) countRefusals(fd int) error {
	defer unix.Close(fd)
	t, err := refusals.MapTally(fd)
	if err != nil {
		return err
	}
	d.refused = refusals.NewSummary(t)
	return nil
}

// callRefused is notify.Options.Refused.
func (d *daemon) callRefused(n notify.Refusal) {
	d.refused.Add(refusals.Refusal{Call: n.Call, Program: n.Program, Errno: n.Errno, Command: refusals.SessionOf(n.TID)},
		func() int { return procs.ProcessOf(n.TID) })
}
