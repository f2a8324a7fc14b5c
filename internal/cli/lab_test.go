//go:build linux

package cli_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// lab is a home whose daemon is on its own host: in network and mount namespaces that reach only the hosts of
// lab.test and labWorld.
type lab struct {
	*desk
	root string   // directory of the lab's files
	far  int      // the process whose network is that of the hosts
	into []string // the command prefix that runs a program on the daemon's host
	// asPod is a further prefix for coppice, by which it runs as in a container; nil for none
	asPod []string
}

// newLab creates the hosts, but no sandbox. Everything is removed when the test ends.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs real-root: to make hosts in namespaces of the network")
	}
	for _, p := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s: to make hosts in namespaces of the network", p)
		}
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("needs ipv6: addresses that nobody has, and that count as the internet")
	}
	root, err := os.MkdirTemp("", "lab")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{desk: &desk{t: t, dir: filepath.Join(root, "store")}, root: root}
	l.env = append(os.Environ(), "COPPICE_HOME="+l.dir, "COPPICE_IDLE=60s", "LANG=C.UTF-8", "GORACE=atexit_sleep_ms=0",
		"HOME="+root, "XDG_CONFIG_HOME="+root)
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	l.certify()
	l.write("resolv.conf", "nameserver "+labHosts4+"\n")
	l.write("hosts", "127.0.0.1 localhost\n::1 localhost\n")

	l.far = l.start(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "labhosts", root)
	const host = `set -e
mount --make-rprivate /
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/hosts" /etc/hosts
ip link set lo up
ip link add lab type veth peer name lab netns "$2"
far() { nsenter --target "$hosts" --net ip "$@"; }
hosts=$2; shift 2
ip address add "$1/24" dev lab
ip address add "$2/64" dev lab nodad
ip link set lab up
far link set lo up
for four in "$3" "$5"; do far address add "$four/24" dev lab; done
for six in "$4" "$6" "$7"; do far address add "$six/64" dev lab nodad; done
far link set lab up
echo ready
exec cat`
	daemon := l.start(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}, "sh", "-c", host, "sh",
		root, strconv.Itoa(l.far), labDaemon4, labDaemon6, labHosts4, labHosts6, labEvil4, labEvil6, labPlain6)
	l.into = []string{"nsenter", "--target", strconv.Itoa(daemon), "--net", "--mount", "--"}
	// Verify before anything is sent that the namespace has no default route.
	ways, err := exec.Command(l.into[0],
		append(l.into[1:len(l.into):len(l.into)], "sh", "-ec", "ip route show default; ip -6 route show default")...).Output()
	if err != nil || len(ways) > 0 {
		t.Fatalf("the lab's host has a default route: %v: %s", err, ways)
	}
	t.Cleanup(func() {
		l.try("rm", "--force", sandbox)
		l.try("serve", "--stop")
		l.killDaemon()
		if err := killBroker(l.dir); err != nil { // those commands may have started it again
			t.Error(err)
		}
	})
	return l
}

// start starts a program that prints "ready", and exits when its stdin is closed.
func (l *lab) start(attr *syscall.SysProcAttr, name string, args ...string) (pid int) {
	l.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr, cmd.Env, cmd.Stderr = attr, l.env, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			l.t.Errorf("%s: %v", name, err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		l.t.Fatalf("%s is not ready: %v %q", name, err, line)
	}
	return cmd.Process.Pid
}

// try runs coppice on the daemon's host. The output includes stderr if it fails.
func (l *lab) try(args ...string) (string, error) { return l.feed(nil, args...) }

func (l *lab) feed(stdin io.Reader, args ...string) (string, error) {
	cmd := exec.Command(l.into[0], slices.Concat(l.into[1:], l.asPod, []string{"coppice"}, args)...)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = l.env, stdin, &out, &errs
	err := cmd.Run()
	if err != nil {
		out.Write(errs.Bytes())
	}
	return out.String(), err
}

func (l *lab) run(args ...string) string {
	l.t.Helper()
	out, err := l.try(args...)
	if err != nil {
		l.t.Fatalf("coppice %q: %v: %s", args, err, out)
	}
	return out
}

// sh runs a script in the sandbox, and returns its output. In the script, "no" precedes a command that must fail.
func (l *lab) sh(script string) (string, error) {
	return l.try("exec", sandbox, "--timeout", "3m", "--", "bash", "-c",
		`exec 2>&1; set -e; cd ~; no() { if "$@"; then echo "it worked: $*"; exit 99; fi; }; `+script)
}

// file creates a file in the sandbox.
func (l *lab) file(path, text string) {
	l.t.Helper()
	out, err := l.feed(strings.NewReader(text), "exec", "-i", sandbox, "--", "sh", "-c",
		`mkdir -p "$(dirname "$0")" && cat >"$0"`, path)
	if err != nil {
		l.t.Fatalf("make %s: %v: %s", path, err, out)
	}
}

// write creates a file of the lab, and returns its path.
func (l *lab) write(name, text string) string {
	l.t.Helper()
	path := filepath.Join(l.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// hits returns the requests that the lab's hosts received.
func (l *lab) hits() string {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(l.root, "hits"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	return string(b)
}

// told waits for an event that satisfies want, and returns it.
func (l *lab) told(what string, want func(wire.NetEvent) bool) wire.NetEvent {
	l.t.Helper()
	var r wire.NetResult
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := json.Unmarshal([]byte(l.run("net", "log", sandbox, "--json", "-n", "-1")), &r); err != nil {
			l.t.Fatal(err)
		}
		for _, ev := range r.Events {
			if want(ev) {
				return ev
			}
		}
	}
	var all strings.Builder
	for _, ev := range r.Events {
		fmt.Fprintf(&all, "\n%s %s %s [%s]:%d %s", ev.Kind, ev.Proto, ev.Name, ev.Addr, ev.Port, ev.Reason)
	}
	l.t.Errorf("no event: %s; events:%s", what, all.String())
	return wire.NetEvent{}
}

// denied waits for the denial of a name whose reason contains why.
func (l *lab) denied(proto, name, why string) wire.NetEvent {
	l.t.Helper()
	return l.told(proto+" "+name+" denied", func(ev wire.NetEvent) bool {
		return ev.Kind == wire.NetDeny && ev.Proto == proto && ev.Name == name && strings.Contains(ev.Reason, why)
	})
}

// certify creates an authority, ca.pem, and a certificate for all hosts.
func (l *lab) certify() {
	l.t.Helper()
	made := func(cert, by *x509.Certificate, key, with *ecdsa.PrivateKey, name string) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, cert, by, &key.PublicKey, with)
		if err != nil {
			l.t.Fatal(err)
		}
		l.write(name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
		cert, err = x509.ParseCertificate(der)
		if err != nil {
			l.t.Fatal(err)
		}
		return cert
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			l.t.Fatal(err)
		}
		return k
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	root, host := key(), key()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the lab's authority"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authority = made(authority, authority, root, root, "ca.pem")
	made(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "lab.test"}, NotBefore: from, NotAfter: until,
		DNSNames: append([]string{"*.lab.test"}, labWorld...), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, host, root, "cert.pem")
	der, err := x509.MarshalECPrivateKey(host)
	if err != nil {
		l.t.Fatal(err)
	}
	l.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
}
