//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/pem"
	"testing"
)

// TestWithPEM_CopiesNothingButCertificates exists because a sandbox could link its bundle to a file that it may write
// but not read, to get a readable copy.
func TestWithPEM_CopiesNothingButCertificates(t *testing.T) {
	t.Parallel()
	cert := func(kind, der string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(der)})
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	ca, other, key := cert("CERTIFICATE", "gate"), cert("CERTIFICATE", "other"), cert("PRIVATE KEY", "secret")
	for name, have := range map[string][]byte{
		"without the authority":    join([]byte("secret\n"), other, key),
		"with the authority":       join([]byte("secret\n"), ca, other, key, []byte("secret")),
		"with the authority twice": join(ca, ca, other),
		"with one that has headers": join(other,
			pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"Note": "secret"}, Bytes: []byte("gate")})),
	} {
		got := withPEM(have, ca)
		if want := join(other, ca); !bytes.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if again := withPEM(got, ca); !bytes.Equal(again, got) {
			t.Errorf("%s: a second time %q", name, again)
		}
	}
}
