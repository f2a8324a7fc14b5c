//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestGvisorRekey_IgnoresWhatTheSandboxPutsInItsWay plants, as root inside, files and named pipes at paths where init
// looked for its own files, and replaces files that init wrote.
func TestGvisorRekey_IgnoresWhatTheSandboxPutsInItsWay(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]struct{ before, between string }{
		"file": {before: `mkdir -p /run/coppice-identity; echo mine > /run/coppice-identity/0; echo mine > /run/coppice-identity/2`},
		"pipe": {before: `mkdir -p /run/coppice-identity /run/coppice-ca; mkfifo /run/coppice-identity/0 /run/coppice-ca/zz.pem; rm -f /dev/urandom; mkfifo /dev/urandom`},
		"gone": {before: `mv /run/coppice-identity /run/else; ln -s /etc /run/coppice-identity`},
		"moved": {before: `mv /etc/machine-id /var/tmp/id; ln -s /var/tmp/id /etc/machine-id`,
			between: `rm /etc/machine-id; echo mine > /etc/machine-id`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := gvisorTier.Start(t)
			b.Sh(t, script.before) // as far as it succeeds
			c := copyOf(t, b, save(t, b), "fork")
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			for _, seed := range []byte{7, 8} { // the second time, the files of the first are already mounted
				steps, err := c.Rekey(ctx, box.Rekey{Seed: bytes.Repeat([]byte{seed}, 32)})
				if err != nil {
					t.Fatalf("%v, after %+v", err, steps)
				}
				if seed == 7 && script.between != "" {
					c.Sh(t, script.between)
				}
			}
			if err := c.Release(ctx); err != nil {
				t.Fatal(err)
			}
			r := c.Sh(t, "cat /etc/machine-id /proc/sys/kernel/random/boot_id")
			if r.Stdout != strings.Repeat("08", 16)+"\n08080808-0808-4808-8808-080808080808\n" {
				t.Errorf("identity of the copy: %+v", r)
			}
		})
	}
}

// withAuthorities adds rules about requests, and trust stores of the base.
func withAuthorities(t *testing.T) func(*plan.Config) {
	return func(c *plan.Config) {
		c.Phases = []plan.Phase{
			phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, ports: [443], methods: [GET]}]")}
		for _, o := range c.Spec.Overlays {
			if o.Target != "/etc" {
				continue
			}
			at := filepath.Join(o.Upper, "ssl/certs")
			if err := os.MkdirAll(at+"/java", 0o755); err != nil {
				t.Fatal(err)
			}
			body := "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00"
			sum := sha1.Sum([]byte("\x00c\x00h\x00a\x00n\x00g\x00e\x00i\x00tMighty Aphrodite" + body))
			if err := os.WriteFile(filepath.Join(at, "java/cacerts"), append([]byte(body), sum[:]...), 0o644); err != nil {
				t.Fatal(err)
			}
			text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("an authority")})
			if err := os.WriteFile(filepath.Join(at, "ca-certificates.crt"), append([]byte("# SECRET\n"), text...),
				0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestGvisorTrust_StartsWhereThereAreAuthorities(t *testing.T) {
	t.Parallel()
	b := gvisorTier.Start(t, withAuthorities(t))
	r := b.Sh(t, "cat "+plan.TrustCA+"; echo; cat "+plan.TrustStores[0])
	if r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	ca, rest := pem.Decode([]byte(r.Stdout))
	if ca == nil || !bytes.Contains(rest, pem.EncodeToMemory(ca)) {
		t.Errorf("the store lacks the gate's authority: %s", r.Stdout)
	}
	if _, err := x509.ParseCertificate(ca.Bytes); err != nil {
		t.Error(err)
	}
	if strings.Contains(r.Stdout, "SECRET") {
		t.Error("something other than a certificate was copied")
	}
	const java = "base64 -w0 /etc/ssl/certs/java/cacerts"
	ours, err := base64.StdEncoding.DecodeString(b.Sh(t, java).Stdout)
	if err != nil || !bytes.Contains(ours, ca.Bytes) {
		t.Errorf("Java's store lacks the gate's authority: %q, %v", ours, err)
	}
	image := save(t, b)
	c := copyOf(t, b, image, "fork", withAuthorities(t))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if steps, err := c.Rekey(ctx, box.Rekey{Seed: bytes.Repeat([]byte{7}, 32)}); err != nil {
		t.Fatalf("%v, after %+v", err, steps)
	}
	if err := c.Release(ctx); err != nil {
		t.Fatal(err)
	}
	theirs := string(pem.EncodeToMemory(ca))
	r = c.Sh(t, "cat "+plan.TrustStores[0]+" "+plan.TrustBundle+" "+plan.TrustCA)
	if strings.Contains(r.Stdout, theirs) || strings.Count(r.Stdout, "BEGIN") < 5 {
		t.Errorf("a copy trusts the gate of the original: %+v", r)
	}
	its, _ := pem.Decode([]byte(c.Sh(t, "cat "+plan.TrustCA).Stdout))
	store, err := base64.StdEncoding.DecodeString(c.Sh(t, java).Stdout)
	if err != nil || its == nil || !bytes.Contains(store, its.Bytes) || bytes.Contains(store, ca.Bytes) {
		t.Errorf("Java in a copy does not trust only the copy's own gate: %q, %v", store, err)
	}
}
