//go:build linux

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The sink's website has two names. The policy has rules about the requests to one of them, which the gate
// inspects, but none about those to the other, whose connections the gate passes through.
const (
	webPort       = "7443"
	webAddr       = sinkHost + ":" + webPort
	inspectedSite = "inspected.example"
	passedSite    = "passed.example"
	// The names are not in the sandbox's /etc/hosts, so it must ask the gate.
	webPolicy = `files: {hide: [/etc/hosts]}
network: {allow: ["` + sinkAddr + `", "` + webAddr + `", "` + passedSite + ":" + webPort + `", {host: ` + inspectedSite + `, ports: [` + webPort + `], methods: [GET, POST]}]}`
	// hostStore is Debian's file of trusted authorities.
	hostStore   = "/etc/ssl/certs/ca-certificates.crt"
	insideStore = "/var/tmp/bench-ca.pem"
)

// certify creates a directory with a certificate for the website, its key, and a hosts file with its names.
func (b *bench) certify() (dir string, err error) {
	dir = filepath.Join(b.dir, "web")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{inspectedSite, passedSite}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	for name, text := range map[string]string{
		"hosts":   "127.0.0.1 localhost\n" + sinkHost + " " + inspectedSite + " " + passedSite + "\n",
		"ca.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"key.pem": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// website serves as many bytes as the path says, and accepts posts.
func website(dir string, l net.Listener) error {
	srv := &http.Server{
		ReadHeaderTimeout: stalled,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
			if err == nil && r.Method == http.MethodPost {
				_, err = io.Copy(io.Discard, r.Body)
				n = 0
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
			_ = send(w, n) // the client counts
		}),
	}
	return srv.ServeTLS(l, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "key.pem"))
}

// visit is reach for the website, over HTTP/1.1 as package managers do. Without a site it uses the address.
func visit(args []string, out io.Writer) error {
	n, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	tr := &http.Transport{DisableKeepAlives: true, Protocols: new(http.Protocols), DisableCompression: true,
		ReadBufferSize: 256 << 10, WriteBufferSize: 256 << 10}
	tr.Protocols.SetHTTP1(true)
	site := passedSite
	if len(args) == 3 {
		site = args[2]
	} else {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", webAddr)
		}
	}
	c := http.Client{Transport: tr, Timeout: stalled}
	url := "https://" + net.JoinHostPort(site, webPort) + "/"
	switch args[0] {
	case ".":
		for range n {
			if err := ask(&c, out, http.MethodGet, url+"0", 0, 0); err != nil {
				return err
			}
		}
		return nil
	case ">":
		return ask(&c, out, http.MethodPost, url+"0", n, 0)
	default:
		return ask(&c, out, http.MethodGet, url+args[1], 0, n)
	}
}

// ask makes one request with a body of body bytes, whose answer has want bytes, and writes the duration.
func ask(c *http.Client, out io.Writer, method, url string, body, want int64) error {
	var from io.Reader
	if body > 0 {
		from = io.LimitReader(zeros{}, body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, url, from)
	if err != nil {
		return err
	}
	req.ContentLength = body
	t := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || got != want {
		return fmt.Errorf("%s %s: %s, %d bytes: %w", method, url, resp.Status, got, err)
	}
	fmt.Fprintln(out, time.Since(t).Nanoseconds())
	return nil
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
