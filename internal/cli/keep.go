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
}

func (k *keeping) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&k.recent, "keep-recent", wire.DefaultKeepRecent,
		"keep the newest `N` automatic snapshots")
	f.DurationVar(&k.all, "keep-for", wire.DefaultKeepForMS*time.Millisecond,
		"keep automatic snapshots newer than `TIME`, as in 12h")
}

// fill sets the flags in a request, in which default values are omitted.
func (k *keeping) fill(req *wire.CreateRequest) error {
	switch {
	case k.recent < 1:
		return usagef("invalid --keep-recent %d: must be at least 1", k.recent)
	case k.all < time.Millisecond || k.all%time.Millisecond != 0:
		return usagef("invalid --keep-for %s: must be positive whole milliseconds", k.all)
	}
	if k.recent != wire.DefaultKeepRecent {
		req.KeepRecent = k.recent
	}
	if ms := k.all.Milliseconds(); ms != wire.DefaultKeepForMS {
		req.KeepForMS = ms
	}
	return nil
}
