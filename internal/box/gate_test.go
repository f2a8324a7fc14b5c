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
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// outside is a server on an address of this host other than loopback. It answers every connection with a line and
// closes it.
func outside(t *testing.T) netip.AddrPort {
	t.Helper()
	// No packet is sent. The kernel only selects the source address.
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Skip("needs a network: this host has no address but loopback's")
	}
	c.Close()
	l, err := net.Listen("tcp", netip.AddrPortFrom(c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "from outside\n")
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// told waits until the journal of b has an event that matches fits, and returns all events.
func told(t *testing.T, b *boxtest.Box, fits func(wire.NetEvent) bool) []wire.NetEvent {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(evs, fits) {
			return evs
		}
		if time.Now().After(end) {
			t.Fatalf("no matching event in %+v", evs)
		}
	}
}

const connect = `exec 3<>/dev/tcp/%s/%d && cat <&3`

// reach connects from inside b and returns the answer. The timeout matters: a connection that began while an interface
// went away waits for minutes.
func reach(t *testing.T, b *boxtest.Box, at netip.AddrPort) (string, bool) {
	t.Helper()
	r := b.Do(t,
		wire.ExecRequest{Cmd: []string{"bash", "-c", fmt.Sprintf(connect, at.Addr(), at.Port())}, TimeoutMS: 5000})
	return r.Stdout, r.Exit.Code == 0
}

// TestGate checks that a box reaches through its gate what its policy allows, and nothing else, while the policy
// changes.
func TestGate(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).Start(t)
	if b.Enforced.State("net") != plan.On || b.Enforced.State("programs") != plan.On {
		t.Errorf("%+v", b.Enforced)
	}
	denied := func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && e.Addr == at.Addr().String() && e.Port == int(at.Port()) &&
			e.Policy == b.Config.Phases[0].Digest
	}
	if got, ok := reach(t, b, at); ok {
		t.Errorf("connected without an allow rule: %q", got)
	}
	told(t, b, denied)

	wide := phase(t, time.Time{}, at.String())
	if err := b.SetPolicy(t.Context(), []plan.Phase{wide}); err != nil {
		t.Fatal(err)
	}
	if got, ok := reach(t, b, at); !ok || got != "from outside\n" {
		t.Errorf("an allowed destination: %q", got)
	}
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetEnd && e.In == 13 && e.Port == int(at.Port()) && e.Policy == wide.Digest &&
			strings.Contains(e.Rule, at.String())
	})
	if n, err := b.Net(t.Context()); err != nil || n.In < 13 || n.EventsLost != 0 {
		t.Errorf("%+v, %v", n, err)
	}

	// A grant expires on time, and its connections are cut.
	soon := wide
	soon.Until = time.Now().Add(500 * time.Millisecond)
	if err := b.SetPolicy(t.Context(), []plan.Phase{soon, b.Config.Phases[0]}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the grant does not expire")
		}
	}
	if time.Now().Before(soon.Until) {
		t.Error("the grant ended before its time")
	}
	told(t, b, func(e wire.NetEvent) bool { return e.Kind == wire.NetPolicy && e.Policy == b.Config.Phases[0].Digest })

	forged := wide
	forged.Digest = b.Config.Phases[0].Digest
	if err := b.SetPolicy(t.Context(), []plan.Phase{forged}); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a policy that does not match its digest: %v", err)
	}
	if _, ok := reach(t, b, at); ok {
		t.Error("a refused policy is in force")
	}
}

// TestGateNames resolves names from inside.
func TestGateNames(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: supervised}).Start(t)
	if r := b.Sh(t, "cat /etc/resolv.conf"); !strings.HasPrefix(r.Stdout, "nameserver 192.0.0.1\n") {
		t.Errorf("resolv.conf is %+v", r)
	}
	if r := b.Sh(t, "getent ahosts secrets.example"); r.Exit.Code == 0 {
		t.Errorf("%+v", r)
	}
	told(t, b, func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && e.Name == "secrets.example" && e.Hint != ""
	})
}

// TestGateExit_LeavesBoxOffline kills the gate: the sandbox continues to run and can reach
// nothing. It also checks the privileges of the gate.
func TestGateExit_LeavesBoxOffline(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).
		Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phase(t, time.Time{}, at.String())} })
	if got, ok := reach(t, b, at); !ok {
		t.Fatalf("%q", got)
	}
	gate := gateOf(t, b)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", gate))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the status of the gate lacks %q: %s", line, status)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", gate))
	if err != nil || !regexp.MustCompile(`Max data size +1073741824 +1073741824 `).Match(limits) {
		t.Errorf("the gate's memory is not limited: %v %s", err, limits)
	}
	if err := syscall.Kill(gate, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	told(t, b, func(e wire.NetEvent) bool { return strings.Contains(e.Reason, "the gate has exited") })
	if got, ok := reach(t, b, at); ok {
		t.Errorf("connected without a gate: %q", got)
	}
	if _, err := b.Net(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
	if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
		t.Errorf("%+v", r)
	}
}

// TestGate_EndsWithMonitor kills the monitor and waits for the gate to exit.
func TestGate_EndsWithMonitor(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: supervised}).Start(t)
	gate := gateOf(t, b)
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", gate))
		if err != nil || strings.Contains(string(st), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the gate did not exit")
		}
	}
}

// gateOf finds the process of a box's gate.
func gateOf(t *testing.T, b *boxtest.Box) int {
	t.Helper()
	return startedBy(t, b, control.Argv0)
}

// startedBy finds the process that the keeper of a box started with that argv[0].
func startedBy(t *testing.T, b *boxtest.Box, argv0 string) int {
	t.Helper()
	s, err := b.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	child := regexp.MustCompile(fmt.Sprintf(`(?s)^[0-9]+ \(.*\) [A-Z] %d `, s.PID))
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || !child.Match(stat) {
			continue
		}
		// The name in stat may still be that of the file, see package process.
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.HasPrefix(args, []byte(argv0+"\x00")) {
			return pid
		}
	}
	t.Fatalf("the keeper has no child %s", argv0)
	return 0
}

// TestGate_DeniesWithoutJournal makes the gate's journal unwritable. No connection may pass until the journal can be
// written again.
func TestGate_DeniesWithoutJournal(t *testing.T) {
	t.Parallel()
	at := outside(t)
	b := (boxtest.Tier{Config: supervised}).
		Start(t, func(c *plan.Config) { c.Phases = []plan.Phase{phase(t, time.Time{}, at.String())} })
	if got, ok := reach(t, b, at); !ok {
		t.Fatalf("%q", got)
	}
	told(t, b, func(e wire.NetEvent) bool { return e.Kind == wire.NetEnd })
	file := filepath.Join(b.Config.Journal, "net.jsonl")
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	reach(t, b, at) // this connection is in progress when the gate notices
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("connections pass without a journal")
		}
	}
	if n, err := b.Net(t.Context()); err != nil || n.EventsLost == 0 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	told(t, b, func(e wire.NetEvent) bool { return strings.Contains(e.Reason, "the journal could not be written") })
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, ok := reach(t, b, at); ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no connection passes although the journal can be written")
		}
	}
}

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
		for i, store := range slices.Concat(plan.TrustStores, plan.JavaStores[:2]) { // the stores in /etc
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
	if r.Stdout != "bundle.pem\nca.pem\n/proc/self/fd/3/etc/passwd\n" {
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

// TestGate_StartsWithFirstPacket checks that the gate of a box whose network is off starts when a program uses the
// network, or with another policy, and that until then nothing that the kernels send by themselves starts it.
func TestGate_StartsWithFirstPacket(t *testing.T) {
	t.Parallel()
	at := outside(t)
	off := phaseOf(t, time.Time{}, "version: 1\nnetwork: off")
	for name, wake := range map[string]func(*testing.T, *boxtest.Box){
		"packet": func(t *testing.T, b *boxtest.Box) {
			if got, ok := reach(t, b, at); ok {
				t.Errorf("connected without an allow rule: %q", got)
			}
			told(t, b, func(e wire.NetEvent) bool {
				return e.Kind == wire.NetDeny && e.Addr == at.Addr().String() && e.Policy == b.Config.Phases[0].Digest
			})
		},
		"policy": func(t *testing.T, b *boxtest.Box) {
			if err := b.SetPolicy(t.Context(), b.Config.Phases); err != nil || gates(t, b) != 0 {
				t.Errorf("the same policy: %v, %d gates", err, gates(t, b))
			}
			if err := b.SetPolicy(t.Context(), []plan.Phase{phase(t, time.Time{}, at.String())}); err != nil {
				t.Fatal(err)
			}
			if got, ok := reach(t, b, at); !ok || got != "from outside\n" {
				t.Errorf("with a rule: %q", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
				c.ID, c.Net, c.Phases = fmt.Sprintf("first-%s-%d", name, os.Getpid()), plan.NetOff, []plan.Phase{off}
			})
			b.Sh(t, "sleep 1") // the kernel reports its multicast groups meanwhile
			if now, err := b.Net(t.Context()); err != nil || now.Conns != 0 || gates(t, b) != 0 {
				t.Errorf("before the first packet: %+v, %v, %d gates", now, err, gates(t, b))
			}
			wake(t, b)
			if gates(t, b) != 1 {
				t.Errorf("%d gates", gates(t, b))
			}
			if err := b.Stop(t.Context(), 0); err != nil || gates(t, b) != 0 {
				t.Errorf("after the stop: %v, %d gates", err, gates(t, b))
			}
		})
	}
}

// TestGate_RecordsLastPacket checks that a packet is decided and recorded if the box ends just after it was sent: the
// gate may not have read it, or may not even have started.
func TestGate_RecordsLastPacket(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"waiting": "version: 1\nnetwork: off", "running": "version: 1\nnetwork: {allow: [a.example]}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
				c.ID, c.Phases = fmt.Sprintf("last-%s-%d", name, os.Getpid()), []plan.Phase{phaseOf(t, time.Time{}, text)}
				if name == "waiting" {
					c.Net = plan.NetOff
				}
			})
			// Until the box's kernel has noticed that its interface is up, a second at most, it drops what programs send.
			b.Do(t, wire.ExecRequest{Cmd: []string{"bash", "-c", "sleep 2; echo x >/dev/udp/93.184.216.34/123"}})
			if err := b.Stop(t.Context(), 0); err != nil || gates(t, b) != 0 {
				t.Errorf("stop: %v, %d gates", err, gates(t, b))
			}
			evs, err := journal.Read(journal.Place{Dir: b.Config.Journal, Key: b.Config.JournalKey}, journal.Query{})
			if err != nil || !slices.ContainsFunc(evs, func(e wire.NetEvent) bool {
				return e.Kind == wire.NetDeny && e.Addr == "93.184.216.34" && e.Port == 123
			}) {
				t.Errorf("%+v, %v", evs, err)
			}
		})
	}
}

// gates returns the number of gate processes of a box.
func gates(t *testing.T, b *boxtest.Box) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, _ := os.ReadFile(name) // the process may have exited
		if string(text) == control.Argv0+"\x00"+b.Config.ID+"\x00" {
			n++
		}
	}
	return n
}
