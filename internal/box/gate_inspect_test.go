//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// inspectAlone is set in the environment of TestGate_InspectsRequests in its separate mount namespace.
const inspectAlone = "COPPICE_TEST_INSPECT"

// overlay mounts text over a file of the host, in the mount namespace of this process.
func overlay(t *testing.T, file, text string) {
	t.Helper()
	ours := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(ours, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(ours, file, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(file, syscall.MNT_DETACH) })
}

// website is a TLS server for a name. It mounts files over those of the host, in this mount namespace, so that the host
// resolves the name and trusts the certificate.
func website(t *testing.T, name string) (at netip.AddrPort) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(outside(t).Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s %s %s\n", r.Method, r.Host, r.RequestURI)
		}),
	}
	var own sync.WaitGroup
	own.Go(func() { _ = srv.ServeTLS(l, "", "") })
	t.Cleanup(func() { srv.Close(); own.Wait() })
	at = l.Addr().(*net.TCPAddr).AddrPort()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	overlay(t, "/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", at.Addr(), name))
	for _, store := range plan.TrustStores {
		if _, err := os.Stat(store); err == nil {
			overlay(t, store, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
			return at
		}
	}
	t.Skip("needs authorities: this host has no trust store")
	return at
}

// requests makes requests inside that the gate inspects.
func requests(t *testing.T, b *boxtest.Box, name, port string) {
	t.Helper()
	url := "https://" + name + ":" + port
	for script, want := range map[string]string{
		"curl -sS " + url + "/items/1":                                        "GET " + name + ":" + port + " /items/1\n",
		"env -u SSL_CERT_FILE -u CURL_CA_BUNDLE curl -sS " + url + "/items/2": " /items/2\n",
		"curl -sS " + url +
			"/other": "reason: a rule names the host, and not this request\n",
		"curl -sS -X DELETE " + url +
			"/items/1": "reason: a rule names the host, and not this request\n",
		`/usr/bin/python3 -c 'import urllib.request; print(urllib.request.urlopen("` + url +
			`/items/3").read().decode())'`: " /items/3\n",
	} {
		if r := b.Sh(t, script); !strings.Contains(r.Stdout, want) {
			t.Errorf("%s: %+v, want %q", script, r, want)
		}
	}
}

// TestGate_InspectsRequests lets the gate inspect requests of clients inside that trust its authority. It runs in a
// separate mount namespace, in which the host knows an additional name and authority.
func TestGate_InspectsRequests(t *testing.T) {
	if os.Getenv(inspectAlone) == "" {
		t.Parallel()
		cmd := &exec.Cmd{
			Path: "/proc/self/exe", Args: []string{os.Args[0], "-test.run=^TestGate_InspectsRequests$", "-test.v"}, Dir: "/",
			Env:         append(os.Environ(), inspectAlone+"=1", "COPPICE_TEST_ROOT_ONLY=1"),
			SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if bytes.Contains(out, []byte("--- SKIP")) {
			t.Skipf("needs what it says: %s", out)
		}
		return
	}
	for _, program := range []string{"curl", "/usr/bin/python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program + ": a client inside")
		}
	}
	const name = "web.example"
	at := website(t, name)
	port := strconv.Itoa(int(at.Port()))
	rules := fmt.Sprintf(`version: 1
network:
  allow: ["%s:%s", {host: %s, ports: [%s], methods: [GET], paths: [/items/*]}]`, at.Addr(), port, name, port)
	b := (boxtest.Tier{Config: supervised}).
		Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phaseOf(t, time.Time{}, rules)} })
	if b.Enforced.State("inspect") != plan.On {
		t.Errorf("%+v", b.Enforced)
	}
	requests(t, b, name, port)
	if programtest.Runc() != "" {
		requests(t, (boxtest.Tier{Config: contained}).
			Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phaseOf(t, time.Time{}, rules)} }), name, port)
	}
	url := "https://" + name + ":" + port
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && e.Method == "DELETE" && e.Path == "/items/1" && e.Status == 403 && e.Name == name
	})
	told(t, b, func(e wire.NetEvent) bool { return e.Kind == wire.NetHTTP && e.Path == "/items/1" })
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetAnswer && e.Method == "GET" && e.Path == "/items/1" && e.Status == 200 && e.In > 0
	})

	// The trust stores of programs contain the gate's certificate, and no layer of the history does.
	r := b.Sh(t, `cat $SSL_CERT_FILE | grep -c BEGIN; tail -n +1 $NODE_EXTRA_CA_CERTS; env | grep -c =/run/coppice-ca/`)
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if len(lines) < 5 || lines[1] != "-----BEGIN CERTIFICATE-----" || lines[len(lines)-1] != "7" {
		t.Fatalf("%+v", r)
	}
	for _, store := range plan.TrustStores {
		r := b.Sh(t, `test ! -e `+store+` || grep -cxF '`+lines[2]+`' `+store)
		if r.Exit.Code != 0 || r.Stdout != "" && r.Stdout != "1\n" {
			t.Errorf("%s: %+v", store, r)
		}
	}

	t.Run("java", func(t *testing.T) {
		if _, err := exec.LookPath("java"); err != nil {
			t.Skip("needs java: a client inside")
		}
		if _, err := os.Stat(plan.JavaStores[0]); err != nil {
			t.Skip("needs authorities of Java: " + err.Error())
		}
		r := b.Sh(t, `cat >/tmp/C.java <<'END'
import java.net.*; import java.net.http.*;
class C { public static void main(String[] a) throws Exception {
	System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(a[0])).build(), HttpResponse.BodyHandlers.ofString()).body());
} }
END
cd /tmp && java C.java `+url+`/items/4`)
		if !strings.Contains(r.Stdout, " /items/4\n") {
			t.Errorf("%+v", r)
		}
	})

	// A box whose policy needed no certificate at the start cannot get a policy that needs one.
	b = (boxtest.Tier{Config: supervised}).Start(t)
	if r := b.Sh(t, `echo $SSL_CERT_FILE; ls -d /run/coppice-ca`); r.Stdout != "\n" {
		t.Errorf("%+v", r)
	}
	if err := b.SetPolicy(t.Context(), []plan.Phase{phaseOf(t, time.Time{}, rules)}); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(fault.HintOf(err), "coppice stop") {
		t.Errorf("%v", err)
	}
}

// TestTrustStores_FollowNoPlantedLinks plants links and a FIFO at the paths of the trust stores. They must stay as they
// are, and nothing that they point to may get into the gate's bundle.
func TestTrustStores_FollowNoPlantedLinks(t *testing.T) {
	t.Parallel()
	rules := "version: 1\nnetwork: {allow: [{host: a.example, methods: [GET]}]}"
	b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
		c.Phases = []plan.Phase{phaseOf(t, time.Time{}, rules)}
		etc := c.Spec.Overlays[slices.IndexFunc(c.Spec.Overlays,
			func(o rootspec.Overlay) bool { return o.Target == "/etc" })].Upper
		ssh := []string{"/etc/ssh/ssh_config", "/etc/ssh/ssh_known_hosts"}
		for i, store := range slices.Concat(plan.TrustStores, plan.JavaStores[:2], ssh) { // the stores in /etc
			at := filepath.Join(etc, strings.TrimPrefix(store, "/etc"))
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			to := fmt.Sprintf("/proc/self/fd/%d/etc/passwd", 3+i) // one of these descriptors is the host's root
			switch i {
			case 4:
				to = "/proc/self/exe"
			case 5:
				if err := syscall.Mkfifo(at, 0o644); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
	})
	r := b.Sh(t, `ls /run/coppice-ca; cmp $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS; readlink `+plan.TrustStores[0])
	if r.Stdout != "bundle.pem\nca.pem\nssh_known_hosts\n/proc/self/fd/3/etc/passwd\n" {
		t.Errorf("%+v", r)
	}
}

// TestJavaStores_TrustGateAuthority checks that the trust stores of JDKs get the gate's authority, and that a warning
// names each store that does not.
func TestJavaStores_TrustGateAuthority(t *testing.T) {
	t.Parallel()
	body := "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00"
	sum := sha1.Sum([]byte("\x00c\x00h\x00a\x00n\x00g\x00e\x00i\x00tMighty Aphrodite" + body))
	stores := map[string]string{
		"jks":    body + string(sum[:]),
		"pkcs12": "\x30\x16\x02\x01\x03\x30\x11\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01\xa0\x04\x04\x02\x30\x00",
		"od\nd":  "something else",
	}
	var upper string
	b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
		c.Phases = []plan.Phase{phaseOf(t, time.Time{}, "version: 1\nnetwork: {allow: [{host: a.example, methods: [GET]}]}")}
		upper = c.Spec.Overlays[slices.IndexFunc(c.Spec.Overlays,
			func(o rootspec.Overlay) bool { return o.Target == "/usr" })].Upper
		for name, text := range stores {
			dir := filepath.Join(upper, "local", name, "lib/security")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+"/cacerts", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// like a mount of a host directory
		c.Access.Mounts = []rootspec.HostMount{{From: filepath.Join(upper, "local/jks"), To: "/usr/local/mount"}}
		away := filepath.Join(upper, "local/away/lib")
		if err := os.MkdirAll(away, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/proc/self/fd/3/etc", away+"/security"); err != nil {
			t.Fatal(err)
		}
	})
	r := b.Sh(t,
		`cd /usr/local; for s in jks pkcs12 od* mount; do grep -ac 'Coppice gate of this sandbox' "$s"/lib/security/cacerts; done`)
	if r.Stdout != "1\n1\n0\n1\n" {
		t.Errorf("%+v", r)
	}
	said := ""
	for _, i := range b.Enforced.Items {
		if i.Name == "java" {
			said = i.Detail
		}
	}
	if b.Enforced.State("java") != plan.Off || strings.Count(said, "/lib/security/cacerts") != 1 ||
		!strings.Contains(said, `"/usr/local/od\nd/lib/security/cacerts"`) {
		t.Errorf("%+v", b.Enforced)
	}
	for name, text := range stores {
		if got, err := os.ReadFile(filepath.Join(upper, "local", name, "lib/security/cacerts")); err != nil ||
			string(got) != text {
			t.Errorf("%q was changed: %q, %v", name, got, err)
		}
	}
}
