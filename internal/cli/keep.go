package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

// keeping is the flags that say how automatic snapshots thin out.
type keeping struct {
	recent int
	all    time.Duration
}

func (k *keeping) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&k.recent, "keep-recent", wire.DefaultKeepRecent,
		"the newest `N` snapshots stay when automatic ones thin out")
	f.DurationVar(&k.all, "keep-for", wire.DefaultKeepForMS*time.Millisecond,
		"automatic snapshots younger than `TIME` stay, as in 12h")
}

// fill puts them into a request, which does not speak of what is as usual.
func (k *keeping) fill(req *wire.CreateRequest) error {
	switch {
	case k.recent < 1:
		return usagef("--keep-recent %d: a number of 1 or more is wanted", k.recent)
	case k.all < time.Millisecond || k.all%time.Millisecond != 0:
		return usagef("--keep-for %s is not a time of whole milliseconds", k.all)
	}
	if k.recent != wire.DefaultKeepRecent {
		req.KeepRecent = k.recent
	}
	if ms := k.all.Milliseconds(); ms != wire.DefaultKeepForMS {
		req.KeepForMS = ms
	}
	return nil
}
