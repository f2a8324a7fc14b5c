package plan_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/plan"
)

func TestKnownHosts(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	line := plan.KnownHosts(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	marker, hosts, got, _, _, err := ssh.ParseKnownHosts(line)
	want, werr := ssh.NewPublicKey(key.Public())
	if err != nil || werr != nil || marker != "cert-authority" || len(hosts) != 1 || hosts[0] != "*" ||
		string(got.Marshal()) != string(want.Marshal()) {
		t.Errorf("%s: %v, %v", line, err, werr)
	}
	empty := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for _, none := range [][]byte{nil, []byte("x"), empty} {
		if line := plan.KnownHosts(none); line != nil {
			t.Errorf("%q: %q", none, line)
		}
	}
}
