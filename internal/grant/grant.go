package grant

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Mode is how a secret gets into a request.
type Mode string

// The modes. The zero Mode is ModeReplace.
const (
	ModeReplace Mode = "replace" // where the placeholder stands
	ModeRequire Mode = "require" // likewise, and requests without it are refused
	ModeAdd     Mode = "add"     // the secret replaces the value of the site; the sandbox gets no placeholder
)

// ForkMode says whether forks of a sandbox get the grant.
type ForkMode string

// The fork modes. The zero ForkMode is ForkNone.
const (
	ForkNone    ForkMode = "none"
	ForkReissue ForkMode = "reissue" // with a new placeholder
)

// AskMode says which uses require approval.
type AskMode string

// The ask modes. The zero AskMode is AskNever.
const (
	AskNever AskMode = "never"
	AskFirst AskMode = "first" // the first for each host and epoch
	AskEach  AskMode = "each"
)

// Denied are requests that a grant never allows, such as those that would create a new credential.
type Denied struct {
	policy.Requests
	Why string
}

// Grant lets requests of one sandbox carry a secret. Check reports whether it is valid.
type Grant struct {
	Name   string
	Secret string // name of the secret, not its value
	Preset string // may be ""
	Kind   Kind   // "" for the kind of the value
	Hosts  []policy.Pattern
	Ports  []uint16
	Allow  policy.Requests
	Deny   []Denied // wins over Allow
	Sites  []Site
	Mode   Mode
	Env    []string  // variables that hold the placeholder
	Until  time.Time // zero: it does not expire
	Uses   int64     // 0: unlimited
	Rate   policy.Rate
	Ask    AskMode
	Fork   ForkMode
	// HostKeys are those that an SSH server must have one of.
	HostKeys []HostKey
	// Insecure lets the secret leave over connections without TLS, in networks of the owner.
	Insecure bool
}

const maxName = 64

// named reports whether s can be the name of a grant or a secret.
func named(s string) bool {
	return s != "" && len(s) <= maxName && strings.Trim(s, lower+digits+"-_.") == "" &&
		strings.Contains(lower+digits, s[:1])
}

// variable reports whether s can be the name of an environment variable.
func variable(s string) bool {
	return s != "" && strings.Trim(s, upper+lower+digits+"_") == "" && !strings.Contains(digits, s[:1])
}

// Check returns the first error in g, of kind Invalid.
func (g Grant) Check() error {
	no := func(hint, format string, args ...any) error {
		return fault.New(fault.Invalid, "grant %s: %s", g.Name, fmt.Sprintf(format, args...)).WithHint("%s", hint)
	}
	for _, name := range []string{g.Name, g.Secret} {
		if !named(name) {
			return fault.New(fault.Invalid, "invalid name of a grant or secret: %q", name).
				WithHint("use at most %d lower-case letters, digits, -, _ and ., such as github-pat", maxName)
		}
	}
	switch {
	case len(g.Hosts) == 0:
		return no("name the hosts, such as --host api.example.com", "a host is required")
	case len(g.Sites) == 0:
		return no("say where the secret stands, such as --header X-Api-Key", "a site is required")
	case len(g.Ports) == 0 || slices.Contains(g.Ports, 0):
		return no("use ports from 1 to 65535", "invalid ports")
	case slices.Contains(g.Allow.Methods, "CONNECT") || slices.Contains(g.Allow.Methods, "TRACE"):
		return no("leave out CONNECT and TRACE", "CONNECT opens a tunnel, and TRACE returns what was sent")
	case g.Uses < 0:
		return no("omit uses for no limit", "invalid uses %d: must be positive", g.Uses)
	}
	for _, h := range g.Hosts {
		why := h.Wide()
		signs := !slices.ContainsFunc(g.Sites, func(s Site) bool { return s.In != InSigV4 })
		if h.IsZero() || why != "" && !signs { // a signature is valid for its host alone
			return no("name the hosts that need the secret", "host %q: %s", h, why)
		}
	}
	for _, v := range g.Env {
		if !variable(v) {
			return no("use letters, digits and _, such as GH_TOKEN", "invalid variable %q", v)
		}
	}
	return g.checkSites(no)
}

// checkSites checks the sites of g, and the settings that depend on them.
func (g Grant) checkSites(no func(hint, format string, args ...any) error) error {
	seen := map[string]bool{}
	for _, s := range g.Sites {
		if _, err := s.checked(); err != nil {
			return fault.Wrap(err, "grant %s", g.Name)
		}
		switch key := s.key(); {
		case s.InBody() && (s.At.Methods == nil || s.At.Paths == nil):
			return no("name the requests, such as --method POST --path /login",
				"site %s requires methods and paths, since other endpoints could publish the secret", s)
		case s.InBody() && slices.Contains(s.At.Paths, "/*"):
			return no("name the path", "site %s cannot be in all bodies", s)
		case seen[key]:
			return no("remove one of them", "duplicate site %s", s)
		case g.Mode == ModeAdd && s.In != InSSH && (!s.inHead() || s.In == InPath || s.In == InSigV4):
			return no("use mode: replace", "mode add is not supported for site %s", s)
		default:
			seen[key] = true
		}
	}
	switch {
	case g.Mode == ModeRequire && !g.http():
		return no("use mode: replace", "mode require requires a site in requests of HTTP")
	case g.Mode == ModeAdd && len(g.Sites) > 1:
		return no("keep one site", "mode add requires one site, and there are %d", len(g.Sites))
	case g.Mode == ModeAdd && len(g.Env) > 0:
		return no("omit env", "mode add has no placeholder")
	}
	return g.checkSSH(no)
}

// key identifies the place of a site in a head, where there is room for one secret only.
func (s Site) key() string {
	switch s.In {
	case InBearer, InBasic, InGit, InSigV4:
		if s.In == InBasic || s.In == InGit {
			return "basic:" + s.Part + strings.Join(s.At.Paths, ",")
		}
		return s.String()
	case InHeader:
		return "header:" + s.Name + ":" + strings.ToLower(s.Part)
	}
	return s.String() + strings.Join(s.At.Paths, ",")
}
