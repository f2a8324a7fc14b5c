//go:build !cgo

package box_test

import (
	"os"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/boxtest"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestZZ(t *testing.T) {
	b := (boxtest.Tier{Name: plan.TierGvisor, Config: gvisorConfig}).Start(t, func(c *plan.Config) {
		if os.Getenv("ZL") != "" {
			c.Limits.Output = 100000
		}
		if os.Getenv("ZK") != "" {
			c.Access.ReadOnly = []rootspec.Place{{Said: "/etc/passwd", At: []string{"/etc/passwd"}}, {Said: "x", At: []string{"/etc/cron.d"}}}
		}
	})
	r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", os.Getenv("ZZ")}})
	t.Log(len(r.Stdout), len(r.Stderr), r.Exit)
	if os.Getenv("ZL") != "" {
		return
	}
	t.Logf("%+v\n%s\n%s", r.Exit, r.Stdout, r.Stderr)
}
