//go:build linux && (amd64 || arm64)

package gvisor

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/gvisor/spare"
)

func TestAConductorIsKnownByTheNameThatTheKeeperGivesIt(t *testing.T) {
	t.Parallel()
	if !spare.IsConductor([]string{guest.ConductorArgv0}) {
		t.Errorf("%s is not known", guest.ConductorArgv0)
	}
}
