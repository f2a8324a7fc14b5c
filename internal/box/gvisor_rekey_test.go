//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/box"
)

// TestGvisorRekey_IgnoresWhatTheSandboxPutsInItsWay has root inside plant files and named
// pipes where init looked for its own, and put others in the place of those it wrote.
func TestGvisorRekey_IgnoresWhatTheSandboxPutsInItsWay(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"file": `mkdir -p /run/coppice-identity; echo mine > /run/coppice-identity/0; echo mine > /run/coppice-identity/2`,
		"pipe": `mkdir -p /run/coppice-identity /run/coppice-ca; mkfifo /run/coppice-identity/0 /run/coppice-ca/zz.pem; rm -f /dev/urandom; mkfifo /dev/urandom`,
		"gone": `mv /run/coppice-identity /run/else; ln -s /etc /run/coppice-identity`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := gvisorTier.Start(t)
			b.Sh(t, script) // as far as it may
			c := copyOf(t, b, save(t, b), "fork")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for _, seed := range []byte{7, 8} { // the second time, files of the first are laid
				steps, err := c.Reseal(ctx, box.Reseal{Seed: bytes.Repeat([]byte{seed}, 32)})
				if err != nil {
					t.Fatalf("%v, after %+v", err, steps)
				}
			}
			if err := c.Release(ctx); err != nil {
				t.Fatal(err)
			}
			r := c.Sh(t, "cat /etc/machine-id /proc/sys/kernel/random/boot_id")
			if r.Stdout != strings.Repeat("08", 16)+"\n08080808-0808-4808-8808-080808080808\n" {
				t.Errorf("the copy's identity: %+v", r)
			}
		})
	}
}
