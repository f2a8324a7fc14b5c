package grant

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// The methods by which Allow of a grant for SSH matches the commands of git.
const (
	GitFetch = "GIT-UPLOAD-PACK"  // clone and fetch
	GitPush  = "GIT-RECEIVE-PACK" // push
)

// DefaultSSHUser is the user of a site InSSH without a name.
const DefaultSSHUser = "git"

// GitCommand is a command of git that an SSH server runs.
type GitCommand struct {
	Method string // GitFetch or GitPush
	// Path is that of the repository, without a slash at its end. It has a slash at its beginning if the client sent one:
	// that makes a difference to a server that runs git in a home directory.
	Path string
}

// ParseGitCommand parses what an SSH client asks a server to run: "git-upload-pack 'PATH'" or
// "git-receive-pack 'PATH'". It returns Denied for anything else, and for a path that a server could read as another.
func ParseGitCommand(text string) (GitCommand, error) {
	no := func(format string, args ...any) (GitCommand, error) {
		return GitCommand{}, fault.New(fault.Denied, format, args...)
	}
	var c GitCommand
	rest := ""
	for word, method := range map[string]string{"git-upload-pack ": GitFetch, "git-receive-pack ": GitPush,
		"git upload-pack ": GitFetch, "git receive-pack ": GitPush} {
		if after, ok := strings.CutPrefix(text, word); ok {
			c.Method, rest = method, after
		}
	}
	if c.Method == "" {
		return no("the command is not one of git to fetch or push: %s", shown(text))
	}
	quoted, ok := strings.CutPrefix(rest, "'")
	if ok {
		quoted, ok = strings.CutSuffix(quoted, "'")
	}
	if c.Path = strings.TrimSuffix(quoted, "/"); !ok || !plainPath(c.Path) {
		return no("the path of the repository may be read in another way: %s", shown(rest))
	}
	return c, nil
}

// plainPath reports whether every server reads the path of a repository in the same way.
func plainPath(path string) bool {
	if path == "" || len(path) > 1024 || strings.Trim(path, alnum+"/._+@=,-~") != "" {
		return false
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if strings.HasPrefix(parts[0], "~") || strings.HasPrefix(parts[0], "-") { // a home, or an option
		return false
	}
	return !slices.ContainsFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." })
}

// String returns the command for a server.
func (c GitCommand) String() string { return strings.ToLower(c.Method) + " '" + c.Path + "'" }

// request returns c as Allow of a grant matches it.
func (c GitCommand) request() *policy.HTTPRequest {
	return &policy.HTTPRequest{Method: c.Method, Path: "/" + strings.TrimPrefix(c.Path, "/")}
}

// HostKey identifies a key of an SSH server: a key, or its fingerprint.
type HostKey struct {
	Type        string // of a key, such as ssh-ed25519; "" if only the fingerprint is known
	Fingerprint string // as ssh-keygen -l prints it: SHA256:...
	blob        string // of a key, in base64
}

// String returns the key or fingerprint in the form of ParseHostKey.
func (k HostKey) String() string {
	if k.Type == "" {
		return k.Fingerprint
	}
	return k.Type + " " + k.blob
}

// ParseHostKey parses a key in the form "TYPE BASE64", as in known_hosts, or a fingerprint "SHA256:...".
func ParseHostKey(text string) (HostKey, error) {
	no := fault.New(fault.Invalid, "invalid host key %.60q", text).
		WithHint("use a fingerprint SHA256:..., or a key such as ssh-ed25519 AAAA...: ssh-keyscan HOST")
	if sum, ok := strings.CutPrefix(text, "SHA256:"); ok {
		b, err := base64.RawStdEncoding.DecodeString(sum)
		if err != nil || len(b) != sha256.Size || base64.RawStdEncoding.EncodeToString(b) != sum {
			return HostKey{}, no
		}
		return HostKey{Fingerprint: text}, nil
	}
	kind, coded, ok := strings.Cut(text, " ")
	blob, err := base64.StdEncoding.DecodeString(coded)
	if !ok || err != nil || base64.StdEncoding.EncodeToString(blob) != coded || // it ignores line breaks
		!slices.Contains(hostKeyTypes[:], kind) || len(blob) < 4+len(kind) ||
		binary.BigEndian.Uint32(blob) != uint32(len(kind)) || !bytes.HasPrefix(blob[4:], []byte(kind)) {
		return HostKey{}, no
	}
	return HostKey{Type: kind, Fingerprint: FingerprintSSH(blob), blob: coded}, nil
}

// hostKeyTypes are the types of keys that a server may have.
var hostKeyTypes = [...]string{"ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
	"ssh-rsa"}

// FingerprintSSH returns the fingerprint of a public key in the wire format of SSH.
func FingerprintSSH(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// SSHUser returns the user that g logs in as over SSH, or "" if g is not for SSH.
func (g Grant) SSHUser() string {
	for _, s := range g.Sites {
		if s.In == InSSH {
			return cmp.Or(s.Name, DefaultSSHUser)
		}
	}
	return ""
}

// checkSSH returns the first error in a grant for SSH.
func (g Grant) checkSSH(no func(hint, format string, args ...any) error) error {
	if g.SSHUser() == "" {
		if g.HostKeys != nil {
			return no("omit the host keys, or use site ssh", "host keys are for SSH")
		}
		return nil
	}
	scan := "get them from a place that you trust: ssh-keyscan HOST | coppice grant NAME " + g.Name + " --host-key - ..."
	for _, m := range g.Allow.Methods {
		if m != GitFetch && m != GitPush {
			return no("use "+GitFetch+" or "+GitPush, "method %s is not one of git over SSH", m)
		}
	}
	switch {
	case len(g.Sites) > 1:
		return no("give two grants", "site ssh cannot be combined with others")
	case len(g.HostKeys) == 0:
		return no(scan, "the keys of the host are unknown")
	case g.Mode != ModeAdd || len(g.Env) > 0:
		return no("omit mode and env", "a grant for SSH has no placeholder")
	case g.Insecure || g.Allow.Query != nil:
		return no("omit it", "insecure and query are for HTTP")
	case g.Ask != "" && g.Ask != AskNever:
		return no("omit ask, or give the grant for the time of one command: --uses 1", "ask is for HTTP")
	}
	return nil
}

// Login is a command that a sandbox wants to run on an SSH server.
type Login struct {
	Hosts []policy.Host // the names by which the sandbox may have found the server
	Port  uint16
	User  string
	Git   GitCommand
}

// Terminates reports whether a grant, even a revoked one, is for SSH at a port of a host. The gate then accepts nothing
// but the commands of such grants.
func (g Issued) Terminates(h policy.Host, port uint16) bool {
	return g.SSHUser() != "" && slices.Contains(g.Ports, port) &&
		slices.ContainsFunc(g.Hosts, func(p policy.Pattern) bool { return p.Matches(h) })
}

// Login decides which grant a command may use, and returns the command as it is sent: a path that is allowed only with
// .git at its end gets it.
func (s Set) Login(l Login, spent Spent, now time.Time) (best Issued, send GitCommand, no *Refusal) {
	no = &Refusal{Reason: "no grant is for SSH to this host"}
	longest, closest := -1, -1
	for _, g := range s.grants {
		if !slices.ContainsFunc(l.Hosts, func(h policy.Host) bool { return g.Terminates(h, l.Port) }) {
			continue
		}
		git, met, why := g.login(l)
		if why == nil {
			why = g.limits(Use{HTTP: *git.request()}, spent[g.Name], now)
		}
		if why != nil {
			if met > closest { // of several refusals, that of the grant which nearly matches
				no, closest = why, met
				no.Grant, no.Hint = g.Name, cmp.Or(no.Hint, "coppice grant "+s.sandbox+" "+g.Name)
			}
			continue
		}
		if n := g.specific(git); n > longest {
			best, send, longest = g, git, n
		}
	}
	if longest >= 0 {
		no = nil
	}
	return best, send, no
}

// login returns the command that g allows for l, and how many conditions of g were met.
func (g Issued) login(l Login) (git GitCommand, met int, no *Refusal) {
	git = l.Git
	switch {
	case g.Revoked:
		return git, 0, &Refusal{Reason: "grant " + g.Name + " was revoked, or is one of another sandbox"}
	case l.User != g.SSHUser():
		return git, 1, &Refusal{Reason: "grant " + g.Name + " is for user " + g.SSHUser() + ", not " + shown(l.User)}
	case !g.Allow.Allow(git.request()) && !strings.HasSuffix(git.Path, ".git"):
		git.Path += ".git"
	}
	if !g.Allow.Allow(git.request()) {
		return git, 2, &Refusal{Reason: "grant " + g.Name + " does not allow " + shown(l.Git.String())}
	}
	return git, 3, nil
}

// specific returns how closely g matches a command that it allows.
func (g Issued) specific(git GitCommand) (n int) {
	for _, p := range g.Allow.Paths {
		if (policy.Requests{Paths: []string{p}}).Allow(git.request()) {
			n = max(n, len(p))
		}
	}
	return n
}
