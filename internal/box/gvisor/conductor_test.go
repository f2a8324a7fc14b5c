//go:build linux && (amd64 || arm64)

package gvisor

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestConductor_RefusesForgedMessages checks that a compromised init cannot send messages that only the conductor may
// send: which programs ran, and that the memory is saved.
func TestConductor_RefusesForgedMessages(t *testing.T) {
	t.Parallel()
	for _, k := range []initlink.Kind{initlink.MsgPrograms, initlink.MsgSaved} {
		err := (&conductor{}).toKeeper(&initlink.Message{Kind: k, Payload: []byte("{}")})
		if fault.KindOf(err) != fault.Denied {
			t.Errorf("message %q from inside: %v", byte(k), err)
		}
	}
}
