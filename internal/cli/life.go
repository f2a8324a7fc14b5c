package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/tty"
)

// living has the flags for the lifetime of a sandbox.
type living struct{ ttl, idle time.Duration }

func (l *living) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&l.ttl, "ttl", 0,
		"remove the sandbox after `TIME`, as in 12h, or keep only its tagged snapshots; 0: never")
	f.DurationVar(&l.idle, "idle-stop", 0, "stop its processes after `TIME` of inactivity, as in 10m; 0: never")
}

// request returns a request with the flags that were given.
func (l *living) request(cmd *cobra.Command) (req wire.LifeRequest, err error) {
	for _, x := range []struct {
		flag string
		d    time.Duration
		ms   **int64
	}{{"ttl", l.ttl, &req.TTLMS}, {"idle-stop", l.idle, &req.IdleStopMS}} {
		if !cmd.Flags().Changed(x.flag) {
			continue
		}
		if x.d < 0 || x.d%time.Millisecond != 0 {
			return req, usagef("invalid --%s %s: must be whole milliseconds", x.flag, x.d)
		}
		ms := x.d.Milliseconds()
		*x.ms = &ms
	}
	return req, nil
}

// fill sets the flags in a request for a new sandbox.
func (l *living) fill(cmd *cobra.Command, req *wire.CreateRequest) error {
	r, err := l.request(cmd)
	if r.TTLMS != nil {
		req.TTLMS = *r.TTLMS
	}
	if r.IdleStopMS != nil {
		req.IdleStopMS = *r.IdleStopMS
	}
	return err
}

func (a *app) update() *cobra.Command {
	var (
		l      living
		labels relabelling
	)
	cmd := &cobra.Command{
		Use: "update NAME [flags]", Short: "Update the lifetime and labels of a sandbox", GroupID: groupBox,
		Long: `Set when a sandbox is removed, counted from now, and when its processes are
stopped. A sandbox with tags is not removed when it expires: it is stopped,
rewound to its newest tag, and keeps only its tagged snapshots. A sandbox that
expires while no daemon runs is removed by the next one. Labels are removed
first, then added.`,
		Example: `  coppice update box --ttl 24h
  coppice update box --label-add team=web --label-rm ci
  coppice update box --ttl 0 --idle-stop 30m`,
		Args:              between(1, 1, "a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := l.request(cmd)
			if err != nil {
				return err
			}
			if err := labels.fill(&req); err != nil {
				return err
			}
			if req.TTLMS == nil && req.IdleStopMS == nil && len(req.Labels)+len(req.RemoveLabels) == 0 {
				return usagef("update requires --ttl, --idle-stop, --label-add or --label-rm")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			sb, err := c.SetLife(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(sb, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, a.life(sb))
				for _, text := range label.List(sb.Labels) {
					if err == nil {
						_, err = fmt.Fprintln(w, "label "+tty.Clean(text))
					}
				}
				return err
			})
		},
	}
	l.flags(cmd)
	labels.flags(a, cmd)
	return cmd
}

// life describes the lifetime of a sandbox.
func (a *app) life(sb wire.Sandbox) string {
	s := "never expires"
	if sb.Expires != nil {
		if left := sb.Expires.Sub(a.now()); left <= 0 {
			s = "expired"
		} else {
			s = "expires in " + left.Round(time.Second).String()
		}
	}
	if sb.IdleStopMS > 0 {
		s += ", stopped after " + (time.Duration(sb.IdleStopMS) * time.Millisecond).String() + " of inactivity"
	}
	return s
}
