package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ports"
)

// writeCert writes a self-signed certificate for 127.0.0.1.
func writeCert(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "EC PRIVATE KEY", Bytes: b}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDoor_ReloadsRenewedCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	log, failed := slog.New(slog.DiscardHandler), make(chan error, 1)
	if _, err := openDoor(t.Context(),
		HTTP{Addr: "127.0.0.1:0", TLSCert: certFile, TLSKey: keyFile}, log, failed); !fault.Is(err, fault.Invalid) {
		t.Errorf("no files: %v", err)
	}
	writeCert(t, certFile, keyFile, 1)
	d, err := openDoor(t.Context(), HTTP{Addr: "127.0.0.1:0", TLSCert: certFile, TLSKey: keyFile}, log, failed)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	d.serve(nil, ports.New(ports.Options{}), &auth.Tokens{}, log)
	defer d.shutdown(t.Context())
	serial := func(least uint16) int64 {
		// The test checks which certificate is served, not whether to trust it.
		c, err := tls.Dial("tcp", d.ln.Addr().String(),
			&tls.Config{InsecureSkipVerify: true, MinVersion: least, MaxVersion: least})
		if err != nil {
			return -1
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	look := func() { d.cert.mu.Lock(); d.cert.looked = time.Time{}; d.cert.mu.Unlock() }
	if got := serial(tls.VersionTLS12); got != 1 {
		t.Errorf("serial %d", got)
	}
	if got := serial(tls.VersionTLS11); got != -1 {
		t.Error("TLS 1.1 was accepted")
	}
	if err := os.WriteFile(certFile, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	look()
	if got := serial(tls.VersionTLS13); got != 1 {
		t.Errorf("while the file is not a certificate: serial %d", got)
	}
	writeCert(t, certFile, keyFile, 2)
	look()
	if got := serial(tls.VersionTLS13); got != 2 {
		t.Errorf("renewed: serial %d", got)
	}
}

func TestDoor_AnswersProbesBeforeItServes(t *testing.T) {
	t.Parallel()
	log, failed := slog.New(slog.DiscardHandler), make(chan error, 1)
	d, err := openDoor(t.Context(), HTTP{Addr: "127.0.0.1:0"}, log, failed)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	status := func(path string) int {
		res, err := http.Get(d.url() + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/status": 503} {
		if got := status(path); got != want {
			t.Errorf("starting: %s: %d", path, got)
		}
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	d.serve(api, ports.New(ports.Options{}), &auth.Tokens{}, log)
	for path, want := range map[string]int{"/healthz": 204, "/readyz": 204, "/v1/status": 401} {
		if got := status(path); got != want {
			t.Errorf("serving: %s: %d", path, got)
		}
	}
	d.close()
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", d.ln.Addr().String()); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}
