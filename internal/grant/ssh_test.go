package grant

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// hostKey is a key in the form of known_hosts, of type ed25519.
var hostKey = "ssh-ed25519 " + base64.StdEncoding.EncodeToString(
	slices.Concat([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), make([]byte, 32)))

func TestParseGitCommand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]GitCommand{
		"git-upload-pack 'acme/repo.git'":   {GitFetch, "acme/repo.git"},
		"git-upload-pack '/acme/repo.git/'": {GitFetch, "/acme/repo.git"},
		"git-receive-pack '/a-b/c_d.e+f@g'": {GitPush, "/a-b/c_d.e+f@g"},
		"git receive-pack 'v3/org/p/repo'":  {GitPush, "v3/org/p/repo"},
	} {
		if got, err := ParseGitCommand(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "id", "git-upload-pack", "git-upload-pack ", "git-upload-pack acme/repo.git", "git-upload-pack 'a",
		"git-upload-pack a'",
		"git-upload-pack '", "git-upload-pack ''", "git-upload-pack '/'", "git-upload-pack '//a'", "git-upload-pack 'a//b'",
		"git-upload-pack 'a/../b'", "git-upload-pack '../b'", "git-upload-pack './b'", "git-upload-pack 'a/..'",
		"git-upload-pack 'a/./b'", "git-upload-pack '~/a'", "git-upload-pack '~root/a'", "git-upload-pack '/~root/a'",
		"git-upload-pack '-a'", "git-upload-pack '/-a'", "git-upload-pack --strict 'a'", "git-upload-pack 'a' 'b'",
		"git-upload-pack 'a'; id", "git-upload-pack 'a'\n", " git-upload-pack 'a'", "git-upload-pack  'a'",
		"git-upload-pack 'a'\\''b'", "git-upload-pack 'a%2fb'", "git-upload-pack 'a\\b'", "git-upload-pack 'a\x00b'",
		"git-upload-pack 'ä'", "git-upload-pack 'a;b'", "git-upload-pack 'a$b'", "git-upload-pack 'a b'",
		"git-upload-archive 'a'", "git-lfs-authenticate a download", "GIT-UPLOAD-PACK 'a'", "sh -c 'git-upload-pack a'",
		"git-upload-pack '" + strings.Repeat("a", 1025) + "'",
	} {
		if got, err := ParseGitCommand(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func FuzzParseGitCommand(f *testing.F) {
	f.Add("git-upload-pack '/acme/repo.git'")
	f.Add("git-receive-pack '~/a/../b'; id")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseGitCommand(text)
		if err != nil {
			return
		}
		// What is sent is one command with one plain word.
		again, err := ParseGitCommand(c.String())
		if err != nil || again != c || strings.ContainsAny(c.Path, "'\\$`;&|<>(){}*?!\"\n\x00 %") ||
			strings.Contains("/"+c.Path+"/", "/../") || strings.Count(c.String(), "'") != 2 {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	})
}

func TestParseHostKey(t *testing.T) {
	t.Parallel()
	k, err := ParseHostKey(hostKey)
	if err != nil || k.String() != hostKey || k.Type != "ssh-ed25519" {
		t.Fatalf("%+v, %v", k, err)
	}
	if f, err := ParseHostKey(k.Fingerprint); err != nil || f.Fingerprint != k.Fingerprint || f.Type != "" {
		t.Errorf("%+v, %v", f, err)
	}
	for _, text := range []string{"", "SHA256:", "SHA256:AAAA", "MD5:00", k.Fingerprint + "=", "ssh-dss" + hostKey[11:],
		"ssh-rsa" + hostKey[11:], hostKey[:20], hostKey + " comment", "ssh-ed25519", "x" + hostKey,
		hostKey[:40] + "\r\n" + hostKey[40:], hostKey + "\n", k.Fingerprint + "\n",
		k.Fingerprint[:20] + "\r" + k.Fingerprint[20:],
		k.Fingerprint[:49] + string(k.Fingerprint[49]+1)} {
		if k, err := ParseHostKey(text); err == nil {
			t.Errorf("%q: %+v", text, k)
		}
	}
}

// login returns a grant for SSH.
func login(t *testing.T, name string, change func(*Item)) Issued {
	t.Helper()
	i := Item{Hosts: []string{"git.example"}, Sites: []SiteItem{{In: "ssh"}}, HostKeys: []string{hostKey}}
	if change != nil {
		change(&i)
	}
	g, err := i.Grant(name, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return Issued{Grant: g}
}

func TestGrant_ForSSH(t *testing.T) {
	t.Parallel()
	if g := login(t, "deploy", nil); g.SSHUser() != "git" || g.Mode != ModeAdd || !slices.Equal(g.Ports, []uint16{22}) {
		t.Errorf("%+v", g)
	}
	for why, change := range map[string]func(*Item){
		"keys of the host are unknown": func(i *Item) { i.HostKeys = nil },
		"not one of git":               func(i *Item) { i.Methods = []string{"GET"} },
		"invalid user":                 func(i *Item) { i.Sites[0].Name = "a b" },
		"one site":                     func(i *Item) { i.Sites = append(i.Sites, SiteItem{In: "bearer"}) },
		"host keys are for SSH":        func(i *Item) { i.Sites = []SiteItem{{In: "bearer"}} },
		"no placeholder":               func(i *Item) { i.Mode = "replace" },
		"invalid host key":             func(i *Item) { i.HostKeys = []string{"x"} },
		"ask is for HTTP":              func(i *Item) { i.Ask = "each" },
	} {
		i := Item{Hosts: []string{"git.example"}, Sites: []SiteItem{{In: "ssh"}}, HostKeys: []string{hostKey}}
		change(&i)
		if _, err := i.Grant("deploy", time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
}

func TestSet_Login(t *testing.T) {
	t.Parallel()
	revoked := login(t, "old", func(i *Item) { i.Paths = []string{"/old/*"} })
	revoked.Revoked = true
	s, err := NewSet("box", []Issued{
		login(t, "all", func(i *Item) { i.Paths = []string{"/acme/*"}; i.Methods = []string{GitFetch} }),
		login(t, "one", func(i *Item) { i.Paths = []string{"/acme/repo.git"}; i.Uses = 2; i.For = "1h" }),
		login(t, "root", func(i *Item) { i.Sites[0].Name = "root"; i.Paths = []string{"/srv/repo"} }),
		revoked,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		host, user, command string
		port                uint16
		used                int64
		after               time.Duration
		want                string // the grant and the path that is sent, or why not
	}{
		{command: "git-upload-pack 'acme/repo.git'", want: "one acme/repo.git"},
		{command: "git-upload-pack '/acme/repo.git/'", want: "one /acme/repo.git"},
		{command: "git-receive-pack 'acme/repo'", want: "one acme/repo.git"},
		{command: "git-upload-pack 'acme/more.git'", want: "all acme/more.git"},
		{command: "git-upload-pack 'acme/repo'", want: "one acme/repo.git"},
		{command: "git-receive-pack 'acme/more.git'", want: "does not allow git-receive-pack 'acme/more.git'"},
		{command: "git-receive-pack 'acme/repo.git/x'", want: "does not allow"},
		{command: "git-upload-pack 'other/repo.git'", want: "does not allow"},
		{command: "git-upload-pack 'old/repo.git'", want: "does not allow"},
		{command: "git-upload-pack 'acme/repo.git'", used: 2, want: "all acme/repo.git"},
		{command: "git-receive-pack 'acme/repo.git'", after: 2 * time.Hour, want: "has expired"},
		{user: "root", command: "git-upload-pack '/srv/repo'", want: "root /srv/repo"},
		{user: "root", command: "git-upload-pack '/srv/repo.git'", want: "root does not allow"},
		{user: "admin", command: "git-upload-pack 'acme/repo.git'", want: "is for user git, not admin"},
		{host: "other.example", command: "git-upload-pack 'acme/repo.git'", want: "no grant"},
		{port: 2222, command: "git-upload-pack 'acme/repo.git'", want: "no grant"},
	} {
		if x.host == "" {
			x.host = "git.example"
		}
		if x.user == "" {
			x.user = "git"
		}
		if x.port == 0 {
			x.port = 22
		}
		host, err := policy.ParseHost(x.host)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseGitCommand(x.command)
		if err != nil {
			t.Fatal(err)
		}
		g, send, no := s.Login(Login{Hosts: []policy.Host{host}, Port: x.port, User: x.user, Git: c},
			Spent{"one": {Used: x.used}}, time.Unix(0, 0).Add(x.after))
		got := g.Name + " " + send.Path
		if no != nil {
			got = no.Reason
		}
		if no == nil && got != x.want || no != nil && !strings.Contains(got, x.want) {
			t.Errorf("%+v: %s", x, got)
		}
	}
}
