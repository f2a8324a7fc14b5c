// Package decoy generates honeytokens, files that look as if they contain credentials, and finds their tokens in what a
// sandbox sends. The tokens give no access: they have the form of real ones, but are random.
//
// It does no I/O. The engine creates the files with it, and the gate searches for tokens.
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
	// Tokens are the parts of the text that cannot be sent by accident: each has at least LeastToken ASCII
	// characters, and is random except for its prefix.
	Tokens []string `json:"tokens"`
}

// LeastToken is the minimum length of a token, in bytes: a Finder then finds it at any offset.
const LeastToken = 20

// Owner is the user that the files seem to belong to.
type Owner struct {
	Name string // user name, as in kate; "" chooses one
	Host string // host name; "" chooses one
}

// kind is a well-known path of credentials, with a function for its content.
type kind struct {
	is   func(dir, name string) bool
	mode uint32
	make func(*maker)
}

// named matches a file with one of names, in any directory.
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

// in matches a file with a given name in a directory with a given name.
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

// kinds returns all kinds; the first that matches is used.
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

// Known reports whether p is a well-known path of credentials; for other paths Make writes environment variables.
func Known(p string) bool {
	dir, name := path.Split(path.Clean(p))
	for _, k := range kinds() {
		if k.is(path.Clean(dir), name) {
			return true
		}
	}
	return false
}

// Make creates a decoy for the path p, with randomness from random. The decoy is some weeks or months older than now.
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

// settle sets the missing fields of the owner.
func (m *maker) settle() {
	if m.of.Name == "" || m.of.Name == "root" {
		m.of.Name = m.pick("alex", "daniel", "jkim", "maria", "mweber", "nina", "priya", "sam", "tom")
	}
	if m.of.Host == "" {
		m.of.Host = m.pick("devbox", "laptop", "thinkpad", "workstation")
	}
}

// age returns a time in working hours some weeks or months ago.
func (m *maker) age() time.Time {
	back := time.Duration(20+m.number(300))*24*time.Hour + time.Duration(m.number(9*3600))*time.Second
	return m.now.Add(-back).Truncate(time.Second)
}

func (m *maker) line(format string, args ...any) { fmt.Fprintf(&m.text, format+"\n", args...) }
