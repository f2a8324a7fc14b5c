// Package decoy makes files that look like those in which people keep credentials, and
// finds their tokens again in what a process sends. What it makes opens nothing: keys and
// tokens have the form of real ones, and come from a source of randomness.
//
// It is pure. The engine makes files by it, and the gate looks for tokens.
package decoy

import (
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// File is a decoy.
type File struct {
	Text    []byte    `json:"text"`
	Mode    uint32    `json:"mode"` // permission bits
	ModTime time.Time `json:"mod_time"`
	// Tokens are what of the text nobody could send by accident: each is of LeastToken
	// ASCII characters or more, and random but for its beginning.
	Tokens []string `json:"tokens"`
}

// LeastToken is how long a token is at least: a Finder finds it wherever it begins.
const LeastToken = 20

// Owner is whose files they seem to be.
type Owner struct {
	Name string // of a user, as in kate; "" is some user
	Host string // of a machine; "" is some machine
}

// kind is a place that programs know, and what they have there.
type kind struct {
	is   func(dir, name string) bool
	mode uint32
	make func(*maker)
}

// named says that a file has one of names, in whatever directory.
func named(names ...string) func(string, string) bool {
	return func(_, name string) bool {
		for _, n := range names {
			if n == name {
				return true
			}
		}
		return false
	}
}

// in says that a file of a name is in a directory of a name.
func in(dir, name string) func(string, string) bool {
	return func(d, n string) bool { return path.Base(d) == dir && n == name }
}

func either(all ...func(string, string) bool) func(string, string) bool {
	return func(dir, name string) bool {
		for _, is := range all {
			if is(dir, name) {
				return true
			}
		}
		return false
	}
}

// kinds are looked through in order.
func kinds() []kind {
	return []kind{
		{in(".aws", "credentials"), 0o600, aws},
		{in("gh", "hosts.yml"), 0o600, github},
		{either(named(".git-credentials"), in("git", "credentials")), 0o600, git},
		{either(in(".docker", "config.json"), named(".dockercfg", "auth.json")), 0o600, docker},
		{either(in(".kube", "config"), named("kubeconfig", "admin.conf")), 0o600, kube},
		{either(in(".ssh", "identity"),
			func(_, name string) bool { return strings.HasPrefix(name, "id_") && !strings.Contains(name, ".") }), 0o600, ssh},
		{func(_, name string) bool { return path.Ext(name) == ".pem" || path.Ext(name) == ".key" }, 0o600, pemKey},
		{named(".pgpass"), 0o600, pgpass},
		{named(".my.cnf"), 0o600, mysql},
		{named(".vault-token"), 0o600, vault},
		{either(in("huggingface", "token"), in(".huggingface", "token")), 0o600, huggingface},
		{in(".cargo", "credentials.toml"), 0o600, cargo},
		{in(".cargo", "credentials"), 0o600, cargo},
		{named(".netrc", "_netrc"), 0o600, netrc},
		{named(".npmrc"), 0o600, npm},
		{named(".pypirc"), 0o600, pypi},
	}
}

// Known reports whether programs know what is at the path p by its name; else Make gives
// it variables.
func Known(p string) bool {
	dir, name := path.Split(path.Clean(p))
	for _, k := range kinds() {
		if k.is(path.Clean(dir), name) {
			return true
		}
	}
	return false
}

// Make makes a decoy for the path p out of random, from which it reads as much as it
// needs. It is some weeks or months older than now.
func Make(p string, of Owner, random io.Reader, now time.Time) (File, error) {
	dir, name := path.Split(path.Clean(p))
	k := kind{mode: 0o600, make: variables}
	for _, known := range kinds() {
		if known.is(path.Clean(dir), name) {
			k = known
			break
		}
	}
	m := &maker{random: random, of: of, now: now}
	m.settle()
	k.make(m)
	if m.err != nil {
		return File{}, fault.Wrap(m.err, "make a decoy for %s", p)
	}
	f := File{Text: []byte(m.text.String()), Mode: k.mode, ModTime: m.age(), Tokens: m.tokens}
	return f, m.err
}

// settle fills in what is not known of the owner.
func (m *maker) settle() {
	if m.of.Name == "" || m.of.Name == "root" {
		m.of.Name = m.pick("alex", "daniel", "jkim", "maria", "mweber", "nina", "priya", "sam", "tom")
	}
	if m.of.Host == "" {
		m.of.Host = m.pick("devbox", "laptop", "thinkpad", "workstation")
	}
}

// age gives a time some weeks or months ago, in the day.
func (m *maker) age() time.Time {
	back := time.Duration(20+m.number(300))*24*time.Hour + time.Duration(m.number(9*3600))*time.Second
	return m.now.Add(-back).Truncate(time.Second)
}

func (m *maker) line(format string, args ...any) { fmt.Fprintf(&m.text, format+"\n", args...) }
