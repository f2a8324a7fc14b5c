//go:build linux && (amd64 || arm64)

package escape_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/plan"
)

// outside is the state that the harness plants and watches.
type outside struct {
	base        string // a directory that is mounted as /srv
	dir         string // the store, in base, which is hidden
	inTmp       string // a directory that is not mounted
	facts       escape.Facts
	victim      *exec.Cmd
	victimIn    io.Closer
	victimOut   *bufio.Reader
	connections atomic.Int64
	pipe        int // the other end of the pipe inside; reads do not block
	before      map[string]string
}

func random(t *testing.T) string {
	t.Helper()
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(b[:])
}

func plant(t *testing.T, secret string) *outside {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	o := &outside{}
	var err error
	o.base, err = os.MkdirTemp("/var/tmp", "escape")
	must(err)
	must(os.Chmod(o.base, 0o755))
	o.dir = filepath.Join(o.base, "store")
	must(os.Mkdir(o.dir, 0o755)) // more open than a real one, so that its mode does not hide it
	o.inTmp, err = os.MkdirTemp("/tmp", "escape")
	must(err)
	must(os.Chmod(o.inTmp, 0o755))
	o.facts.Secret = secret
	o.facts.Words = append(words(t), o.base)
	file := func(p string) {
		must(os.MkdirAll(filepath.Dir(p), 0o755))
		must(os.WriteFile(p, []byte(o.facts.Secret), 0o644))
		o.facts.Files = append(o.facts.Files, p)
	}
	file(filepath.Join(o.inTmp, "file"))
	file(filepath.Join(o.dir, "coppice.db"))
	file(filepath.Join(o.dir, "sandboxes/other/live/1/upper/file"))
	file(filepath.Join(o.dir, "layers/base/fs/file"))
	for _, p := range []string{"coppice.db", "sandboxes/other/live/1/upper/file", "layers/base/fs/file"} {
		o.facts.Files = append(o.facts.Files, filepath.Join("/srv/store", p)) // its path inside
	}

	// A file that the root would show without the mask over it.
	file(filepath.Join(o.base, "home/.ssh/id"))
	o.facts.Files = append(o.facts.Files, "/srv/home/.ssh/id")
	must(os.MkdirAll(filepath.Join(o.dir, "mask/home"), 0o755))
	must(unix.Mknod(filepath.Join(o.dir, "mask/home/.ssh"), unix.S_IFCHR, 0))

	// Files that only the policy makes read-only, and a directory that is mounted read-only.
	for _, p := range []string{"kept/deep/er/dir/file", "kept/lone", "kept/mounted/x", "host/dir/file"} {
		p = filepath.Join(o.base, p)
		file(p)
		o.facts.Files = o.facts.Files[:len(o.facts.Files)-1] // this one may be read
		for ; p != o.base; p = filepath.Dir(p) {
			must(os.Chmod(p, 0o777))
		}
	}
	o.facts.Kept, o.facts.KeptIn = []string{"/srv/kept/deep/er/dir/file", "/srv/kept/lone", "/srv/kept/mounted/dir/file"},
		"/srv/kept"

	// Hidden files with honeytokens in their places. The mask has empty files there.
	o.facts.DecoysIn = "/srv/around/decoyed"
	for i := range escape.Glances {
		p := filepath.Join("around/decoyed", strconv.Itoa(i), "key")
		file(filepath.Join(o.base, p))
		o.facts.Files = o.facts.Files[:len(o.facts.Files)-1] // the honeytoken may be read
		empty := filepath.Join(o.dir, "mask", p)
		must(os.MkdirAll(filepath.Dir(empty), 0o755))
		must(os.WriteFile(empty, nil, 0o644))
		for d := filepath.Dir(empty); d != filepath.Join(o.dir, "mask"); d = filepath.Dir(d) {
			must(os.Chmod(d, 0o777))
		}
		o.facts.Decoys = append(o.facts.Decoys, "/srv/"+p)
	}

	listen := func(network, addr string) {
		if a, ok := listens(t, network, addr, func() { o.connections.Add(1) }).(*net.TCPAddr); ok {
			o.facts.Port = a.Port
		}
	}
	for _, p := range []string{filepath.Join(o.dir, "daemon.sock"), filepath.Join(o.inTmp, "host.sock")} {
		listen("unix", p)
		o.facts.Sockets = append(o.facts.Sockets, p)
	}
	o.facts.Sockets = append(o.facts.Sockets, "/srv/store/daemon.sock")
	o.plantShown(t, listen)
	o.facts.Abstract = "escape-" + random(t)
	listen("unix", "@"+o.facts.Abstract)
	listen("tcp", "127.0.0.1:0")

	o.facts.ShmKey = int(time.Now().UnixNano() & 0x7fffffff)
	id, err := unix.SysvShmGet(o.facts.ShmKey, 4096, unix.IPC_CREAT|0o666)
	must(err)
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })

	o.victim = &exec.Cmd{Path: "/proc/self/exe", Args: []string{victimArgv0},
		Env: []string{"ESCAPE_SECRET=" + o.facts.Secret}}
	in, err := o.victim.StdinPipe()
	must(err)
	out, err := o.victim.StdoutPipe()
	must(err)
	must(o.victim.Start())
	o.victimIn, o.victimOut = in, bufio.NewReader(out)
	if line, err := o.victimOut.ReadString('\n'); line != "ready\n" {
		t.Fatal("the victim did not start", line, err)
	}
	o.facts.Victim = o.victim.Process.Pid
	t.Cleanup(func() { _ = o.victim.Process.Kill(); _ = o.victim.Wait() })
	o.before = o.state(t)
	return o
}

// plantShown creates a socket and a pipe in the mounted directory, with a process at their other ends. Tiers without
// their own kernel show them as they are on the host.
func (o *outside) plantShown(t *testing.T, listen func(network, addr string)) {
	t.Helper()
	dir := filepath.Join(o.base, "host/dir")
	listen("unix", filepath.Join(dir, "socket"))
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Chmod(pipe, 0o666),
		os.Chmod(filepath.Join(dir, "socket"), 0o777)); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(pipe, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.pipe = fd
	t.Cleanup(func() { unix.Close(fd) })
	o.facts.Shown = []string{"/srv/kept/mounted/dir/socket", "/srv/kept/mounted/dir/pipe"}
}

// words returns words that identify the host.
func words(t *testing.T) []string {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	all := []string{strings.TrimSpace(string(boot)), strings.TrimSpace(string(release))}
	for _, ns := range []string{"mnt", "user", "pid", "net", "ipc", "uts"} {
		to, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, to)
	}
	return all
}

// listens accepts connections until the test ends, calls met for each, and returns the address.
func listens(t *testing.T, network, addr string, met func()) net.Addr {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			met()
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		done.Wait()
	})
	return l.Addr()
}

// plantGate plants destinations that must be reachable through a gate, and some that must not.
func (o *outside) plantGate(t *testing.T) {
	t.Helper()
	// No packet is sent. The kernel only selects the source address.
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		t.Skip("needs a network: this host has no address but loopback's")
	}
	c.Close()
	host := c.LocalAddr().(*net.UDPAddr).IP.String()
	g := &escape.GateFacts{Host: host, Name: "allowed.example"}
	for _, s := range []netip.Addr{link.Gate4(), link.Gate6()} {
		g.Servers = append(g.Servers, s.String())
	}
	g.TCP = listens(t, "tcp", host+":0", func() { o.connections.Add(1) }).(*net.TCPAddr).Port
	g.Allowed = listens(t, "tcp", host+":0", func() {}).(*net.TCPAddr).Port
	u, err := net.ListenPacket("udp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	g.UDP = u.LocalAddr().(*net.UDPAddr).Port
	go func() {
		for {
			_, from, err := u.ReadFrom(make([]byte, 1))
			if err != nil {
				return
			}
			o.connections.Add(1)
			_, _ = u.WriteTo([]byte("x"), from)
		}
	}()
	o.facts.Gate = g
}

// policy returns a policy that allows one name, and one port of the host.
func (o *outside) policy(t *testing.T) plan.Phase {
	t.Helper()
	g := o.facts.Gate
	text := fmt.Sprintf("version: 1\nnetwork: {allow: [%q, \"%s:%d\"], ask: %v}\n", g.Name, g.Host, g.Allowed, g.Asks)
	return boxtest.Phase(t, time.Time{}, text)
}

// normal returns a destination in the form in which it is recorded.
func normal(s string) string {
	if p, err := netip.ParseAddrPort(s); err == nil {
		return p.String()
	}
	return s
}

// state returns digests of everything that must not change.
func (o *outside) state(t *testing.T) map[string]string {
	t.Helper()
	s := map[string]string{}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	add := func(p string) {
		b, err := os.ReadFile(p)
		sum := sha256.Sum256(b)
		s[p] = fmt.Sprintf("%x %v", sum[:8], err)
	}
	add(exe)
	add("/proc/self/exe")
	for _, p := range []string{"kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/panic",
		"kernel/pid_max", "vm/overcommit_memory",
		"user/max_user_namespaces", "net/ipv4/ip_forward"} {
		add("/proc/sys/" + p)
	}
	for _, root := range []string{o.inTmp, filepath.Join(o.base, "kept"), filepath.Join(o.base, "host"),
		filepath.Join(o.base, "around"), filepath.Join(o.dir, "mask"), filepath.Join(o.dir, "layers"),
		filepath.Join(o.dir, "sandboxes")} {
		err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			s[p] = fmt.Sprintf("%v %d:%d %d", info.Mode(), st.Uid, st.Gid, info.Size())
			if info.Mode().IsRegular() {
				b, err := os.ReadFile(p)
				s[p] += fmt.Sprintf(" %s %v", b, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// unharmed checks that nothing outside was reached or changed.
func (o *outside) unharmed(t *testing.T) {
	t.Helper()
	after := o.state(t)
	for p, was := range o.before {
		if after[p] != was {
			t.Errorf("%s was changed: %q, was %q", p, after[p], was)
		}
	}
	for p := range after {
		if _, ok := o.before[p]; !ok {
			t.Errorf("%s was created", p)
		}
	}
	if n := o.connections.Load(); n != 0 {
		t.Errorf("%d connections came from inside", n)
	}
	if n, err := unix.Read(o.pipe, make([]byte, 1)); n > 0 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%d bytes came through a pipe from inside, %v", n, err)
	}
	o.victimIn.Close()
	line, err := o.victimOut.ReadString('\n')
	if want := "0 " + o.facts.Secret + "\n"; line != want {
		t.Errorf("the victim printed %q (%v), want %q", line, err, want)
	}
}
