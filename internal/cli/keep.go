package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

// keeping has the flags for the retention of automatic snapshots.
type keeping struct {
	recent int
	all    time.Duration
	given  func(flag string) bool
}

func (k *keeping) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	k.given = f.Changed
	f.IntVar(&k.recent, "keep-recent", wire.DefaultKeepRecent,
		"keep the newest `N` automatic snapshots; the daemon may have another default")
	f.DurationVar(&k.all, "keep-for", wire.DefaultKeepForMS*time.Millisecond,
		"keep automatic snapshots newer than `TIME`, as in 12h; the daemon may have another default")
}

// fill sets the given flags in a request; for the others, the defaults of the daemon apply.
func (k *keeping) fill(req *wire.CreateRequest) error {
	switch {
	case k.recent < 1:
		return usagef("invalid --keep-recent %d: must be at least 1", k.recent)
	case k.all < time.Millisecond || k.all%time.Millisecond != 0:
		return usagef("invalid --keep-for %s: must be positive whole milliseconds", k.all)
	}
	if k.given("keep-recent") {
		req.KeepRecent = k.recent
	}
	if k.given("keep-for") {
		req.KeepForMS = k.all.Milliseconds()
	}
	return nil
}
