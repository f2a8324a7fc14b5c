//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// keeper is the broker's end of grants for SSH.
type keeper struct {
	store
	key ssh.Signer
}

func (k *keeper) Sign(_ context.Context, _, _, _, _ string, data []byte) ([]byte, error) {
	if len(data) == 0 {
		return k.key.PublicKey().Marshal(), nil
	}
	s, err := k.key.Sign(rand.Reader, data)
	return ssh.Marshal(s), err
}

func newSSHKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// forge is a sandbox with the grant deploy for git.example, where each command runs until its connection ends.
type forge struct {
	*sandbox
	issued grant.Issued
	runs   chan string  // commands that began
	ahead  atomic.Int64 // of the gate's clock
}

func newForge(t *testing.T, item grant.Item, bounds Bounds) *forge {
	t.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("needs ssh")
	}
	f := &forge{runs: make(chan string, 100)}
	host := newSSHKey(t)
	at := netip.MustParseAddrPort("93.184.216.34:22")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			all.Go(func() { f.serve(c, host) })
		}
	})
	b := &book{decide: allowNames("git.example:22", "other.example:22"), ttl: time.Minute,
		names: map[string][]netip.Addr{"git.example": {at.Addr()}, "other.example": {at.Addr()}},
		hosts: map[netip.AddrPort]string{at: l.Addr().String()}}
	f.sandbox = start(t, veth, b, func(o *Options) {
		o.Bounds = bounds
		o.Now = func() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) }
	})
	item.Hosts, item.Sites = []string{"git.example"}, []grant.SiteItem{{In: "ssh"}}
	item.HostKeys = []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))}
	one, err := item.Grant("deploy", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.issued = grant.Issued{Grant: one}
	f.wallet.Connect(&keeper{key: newSSHKey(t)})
	if err := f.SetSecrets(wallet.Grants{Sandbox: "box", Issued: []grant.Issued{f.issued}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// serve is the server of one connection.
func (f *forge) serve(c net.Conn, host ssh.Signer) {
	defer c.Close()
	config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, nil
	}}
	config.AddHostKey(host)
	_, chans, reqs, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	for one := range chans {
		_, reqs, err := one.Accept()
		if err != nil {
			return
		}
		for r := range reqs {
			if r.Type == "exec" {
				f.runs <- string(r.Payload[4:])
			}
			_ = r.Reply(true, nil)
		}
	}
}

// client returns how ssh(1) runs a command.
func client(command string) []string {
	return []string{"ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "GlobalKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "git@git.example", command}
}

// ssh runs a command in the sandbox.
func (f *forge) ssh(command string) (string, error) {
	out, err := f.do("run", nil, client(command)...)
	return string(out), err
}

// TestGrants_SSHEndsInTime checks that a command ends with the time of its grant, without word from the daemon: one
// command of git can fetch again and again.
func TestGrants_SSHEndsInTime(t *testing.T) {
	t.Parallel()
	f := newForge(t, grant.Item{For: "30m"}, Bounds{})
	var late sync.WaitGroup
	late.Go(func() {
		<-f.runs
		f.ahead.Store(int64(40 * time.Minute))
	})
	out, err := f.ssh("git-upload-pack '/acme/repo.git'")
	if err == nil {
		t.Errorf("the command ended: %s", out)
	}
	late.Wait()
	f.wait(t, "the end", func(e Event) bool { return e.Kind == KindEnd && e.Reason == "grant deploy has expired" })
	if out, err := f.ssh("git-upload-pack '/acme/repo.git'"); err == nil || !strings.Contains(out, "has expired") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestGrants_SSHIsBounded runs one command more than the bound allows.
func TestGrants_SSHIsBounded(t *testing.T) {
	t.Parallel()
	f := newForge(t, grant.Item{}, Bounds{Logins: 2})
	for range 2 {
		later := append([]string{"sh", "-c", `"$@" >/dev/null 2>&1 </dev/null &`, "sh"},
			client("git-upload-pack '/acme/a.git'")...)
		f.must(t, "run", nil, later...)
		<-f.runs
	}
	if out, err := f.ssh("git-upload-pack '/acme/c.git'"); err == nil {
		t.Errorf("%s", out)
	}
	f.denied(t, TCP, "SSH: "+tooManyLogins)
}

// TestGrants_SSHIsFreed runs more commands, one after another, than may be in memory.
func TestGrants_SSHIsFreed(t *testing.T) {
	t.Parallel()
	f := newForge(t, grant.Item{}, Bounds{Logins: 1})
	for n := 0; n < 5; { // a connection is reset while too many are in memory
		out, err := f.ssh("id")
		if err == nil {
			t.Fatal(out)
		}
		if strings.Contains(out, "not one of git") {
			n++
		}
	}
}

// TestLogins_BoundsMemory ends connections that stay in memory.
func TestLogins_BoundsMemory(t *testing.T) {
	t.Parallel()
	l := logins{most: 2}
	for i := range 4 {
		if !l.begin() {
			t.Fatal(i)
		}
		l.end()
	}
	if l.sweep(); l.begin() {
		t.Error("a fifth begins")
	}
	if l.free(); !l.begin() {
		t.Error("none begins after one is freed")
	}
}

// TestGate_Opening checks a connection whose grant goes away while it is accepted.
func TestGate_Opening(t *testing.T) {
	t.Parallel()
	h, err := policy.ParseHost("git.example")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{wallet: wallet.New(time.Now)}
	f := &flow{ssh: true, to: netip.MustParseAddrPort("93.184.216.34:22")}
	rl := ruling{verdict: Allow, name: h, byName: []named{{name: h, Decision: Decision{Verdict: Allow}}}}
	if by := g.opening(f, rl); by.name != h {
		t.Errorf("%+v", by)
	}
}
