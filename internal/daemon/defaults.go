package daemon

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Defaults are settings of new sandboxes whose request does not have them. A zero field leaves the choice to the
// engine. They change no sandbox that exists.
type Defaults struct {
	Driver     string        // "auto", "overlay", "copy" or "btrfs"
	KeepRecent int           // number of automatic snapshots that are kept; not negative
	KeepFor    time.Duration // age up to which automatic snapshots are kept; whole milliseconds, not negative
}

// fill sets what a request for a new sandbox does not have. A sandbox that is made from another one inherits its
// settings, and tier workspace has only one driver.
func (d Defaults) fill(req wire.CreateRequest) wire.CreateRequest {
	if req.From.Kind == wire.SourceSandbox {
		return req
	}
	if req.Driver == "" && req.Tier != "workspace" {
		req.Driver = d.Driver
	}
	if req.KeepRecent == 0 {
		req.KeepRecent = d.KeepRecent
	}
	if req.KeepForMS == 0 {
		req.KeepForMS = d.KeepFor.Milliseconds()
	}
	return req
}
