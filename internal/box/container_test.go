//go:build linux && (amd64 || arm64)

package box_test

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// TestContainer runs the suite in tier container, with runc.
func TestContainer(t *testing.T) {
	requireContainer(t)
	boxtest.Run(t, boxtest.Tier{Name: plan.TierContainer, Config: contained})
}

// contained is supervised in a container of runc.
func contained(t testing.TB) plan.Config {
	c := supervised(t)
	c.Tier, c.Runtime = plan.TierContainer, runcAt
	return c
}

const runcAt = "/usr/sbin/runc"

// requireContainer skips a test where runc does not start a container.
func requireContainer(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, _, err := box.Start(ctx, programtest.Programs(), contained(t))
	if err != nil {
		t.Skipf("needs runc: %v", err)
	}
	if err := b.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
}
