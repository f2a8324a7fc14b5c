package cli

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestLockHome_FailsWhileDaemonServes(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	release, err := lockHome(home)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockHome(home); !fault.Is(err, fault.Conflict) || fault.HintOf(err) == "" {
		t.Errorf("%v, want a conflict with a hint", err)
	}
	release()
	if release, err = lockHome(home); err != nil {
		t.Fatal(err)
	}
	release()
}
