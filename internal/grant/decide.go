package grant

import (
	"cmp"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Count is how often a grant was used: in total, and in the last Grant.Rate.Per.
type Count struct{ Used, Recent int64 }

// Spent are the counts of grants, by name.
type Spent map[string]Count

// Put is a secret to put into a request.
type Put struct {
	Grant, Secret string
	Kind          Kind
	Mode          Mode
	Site          Site
	Placeholder   string // what stands there; "" in ModeAdd, and for a site in the body
	// Placeholders are what may stand in the body, for a site there. With ModeRequire, one must.
	Placeholders []string
	Ask          AskMode
	Left         int64 // uses after this one; -1 is unlimited
}

// Refusal is why a request must not leave.
type Refusal struct {
	Grant, Reason string
	Hint          string // may be ""
}

// Ruling is the decision about a request. The zero Ruling lets it pass unchanged. If Deny is set, Put is empty.
type Ruling struct {
	Put  []Put
	Deny *Refusal
}

// Decide decides which secrets a request carries. It refuses a request in which a placeholder of the sandbox stands
// where a server would take it for a credential, and no grant covers it. A request without placeholders is refused only
// if a grant is required for it, or would be added and is exhausted. The policy must have allowed the request.
func (s Set) Decide(u Use, spent Spent, now time.Time) Ruling {
	fields := u.fields()
	var all []claim
	for _, g := range s.grants {
		claims, no := s.claims(g, u, fields)
		bodies := g.bodies(u, len(claims) > 0)
		if no == nil && (len(claims) > 0 || g.requires(u)) {
			if no = g.limits(u, spent[g.Name], now); no == nil && g.Mode == ModeRequire {
				no = g.incomplete(fields, claims, bodies)
			}
		}
		if no != nil {
			no.Grant = g.Name
			if no.Hint == "" {
				no.Hint = "coppice grant " + s.sandbox + " " + g.Name
			}
			return Ruling{Deny: no}
		}
		if bodies != nil && g.limits(u, spent[g.Name], now) == nil {
			claims = append(claims, bodies...) // otherwise a placeholder in the body leaves as what it is
		}
		for i := range claims {
			claims[i].Left = left(g.Uses, spent[g.Name].Used)
		}
		all = append(all, claims...)
	}
	return settle(all)
}

// left returns how many of uses are left after the next one.
func left(uses, used int64) int64 {
	if uses == 0 {
		return -1
	}
	return uses - used - 1
}

// claim is a Put, and how closely its grant matches the request.
type claim struct {
	Put
	host, path int
}

// settle chooses between the claims to the same part of a head. Placeholders do not compete, as each names its grant.
// An added secret does, with any other: the longest host wins, then the longest path.
func settle(all []claim) (r Ruling) {
	for i, c := range all {
		wins := true
		for j, o := range all {
			if i == j || c.Site.room() != o.Site.room() || c.Mode != ModeAdd && o.Mode != ModeAdd {
				continue
			}
			switch order := cmp.Or(cmp.Compare(c.host, o.host), cmp.Compare(c.path, o.path)); {
			case order == 0:
				return Ruling{Deny: &Refusal{c.Grant, "grants " + c.Grant + " and " + o.Grant + " match the request equally",
					"give one of them longer paths"}}
			case order < 0:
				wins = false
			}
		}
		if wins {
			r.Put = append(r.Put, c.Put)
		}
	}
	return r
}

// claims returns the sites of the head of u that get the secret of g. It returns a Refusal if a placeholder of g is
// elsewhere.
func (s Set) claims(g Issued, u Use, fields []field) (all []claim, no *Refusal) {
	if g.Mode == ModeAdd {
		site := g.Sites[0]
		if g.Revoked || !g.covers(u) || !site.inHead() || !site.At.Allow(&u.HTTP) || site.In == InGit && !git(u.HTTP) {
			return nil, nil
		}
		if name, ok := strings.CutPrefix(site.room(), "header:"); ok && values(u, name) > 1 {
			return nil, &Refusal{Reason: "the request has several headers " + name, Hint: "send one"}
		}
		return []claim{g.claim(u, site, "")}, nil
	}
	for _, placeholder := range g.placeholders() {
		for i, needle := range g.Kind.Parts(placeholder) {
			var where []field
			for _, f := range fields {
				if strings.Contains(f.text, needle) {
					where = append(where, f)
				}
			}
			if len(where) == 0 {
				continue
			}
			switch at := where[0]; {
			case g.Revoked:
				return nil, &Refusal{Reason: "grant " + g.Name + " was revoked, or is one of another sandbox"}
			case !g.reaches(u):
				return nil, s.elsewhere(g, u)
			case len(where) > 1 || strings.Count(at.text, needle) > 1:
				return nil, &Refusal{Reason: "the placeholder of grant " + g.Name + " is in the request twice",
					Hint: "send it once"}
			default:
				site := slices.IndexFunc(g.Sites, func(one Site) bool { return one.takes(u, at, needle) })
				if site < 0 || g.Kind == AWS && i == 1 {
					return nil, g.misplaced(u, at, needle)
				}
				if i == 0 { // the session token of AWS comes with the ID
					all = append(all, g.claim(u, g.Sites[site], placeholder))
				}
			}
		}
	}
	return all, nil
}

// misplaced returns the Refusal of a placeholder of g in a field that none of its sites takes.
func (g Grant) misplaced(u Use, at field, needle string) *Refusal {
	for _, s := range g.Sites {
		if _, why := s.signs(u, at, needle); s.In == InSigV4 && why != "" {
			return &Refusal{Reason: "grant " + g.Name + " does not sign the request: " + why, Hint: "its sites are " + g.sites()}
		}
	}
	return &Refusal{Reason: "the placeholder of grant " + g.Name + " is not at one of its sites: " + at.describe(),
		Hint: "its sites are " + g.sites()}
}

// elsewhere returns the Refusal of a placeholder of g that u would send to another destination.
func (s Set) elsewhere(g Issued, u Use) *Refusal {
	if plain := u; !u.TLS {
		if plain.TLS = true; g.reaches(plain) {
			return &Refusal{Reason: "grant " + g.Name + " is for TLS only, and " + u.where() + " has none", Hint: "use https"}
		}
	}
	return &Refusal{Reason: "grant " + g.Name + " is not for " + u.where(),
		Hint: "coppice grant " + s.sandbox + " " + g.Name + " --host " + u.Host.String()}
}

// requires reports whether a request must have the placeholder of g. The Query of g.Allow does not count, and neither
// does the spelling of the path: otherwise a sandbox could send another credential by another spelling.
func (g Issued) requires(u Use) bool {
	return g.Mode == ModeRequire && !g.Revoked && g.reaches(u) && g.Allow.Forbid(&u.HTTP)
}

// incomplete returns why a request does not meet ModeRequire with the claims of g; nil if it does: it has no
// placeholder, or another credential besides. Whether the placeholder is in the body is not known yet.
func (g Grant) incomplete(fields []field, claims, bodies []claim) *Refusal {
	if len(claims)+len(bodies) == 0 {
		return &Refusal{Reason: "the request requires the placeholder of grant " + g.Name}
	}
	for _, s := range g.Sites {
		if slices.ContainsFunc(claims, func(c claim) bool { return c.Site.room() == s.room() }) {
			continue
		}
		if i := slices.IndexFunc(fields, s.holds); i >= 0 {
			return &Refusal{Reason: "the request has another credential than that of grant " + g.Name + ": " +
				fields[i].String(), Hint: "send the placeholder only"}
		}
	}
	return nil
}

// describe says where f is, and what is odd about it.
func (f field) describe() string {
	if f.odd != "" {
		return f.String() + ", and " + f.odd
	}
	return f.String()
}

// sites lists the sites of g.
func (g Grant) sites() string {
	var all []string
	for _, s := range g.Sites {
		all = append(all, s.String())
	}
	return strings.Join(all, ", ")
}

// values returns how many headers called name u has.
func values(u Use, name string) (n int) {
	for k, v := range u.Header {
		if textproto.CanonicalMIMEHeaderKey(k) == name {
			n += len(v)
		}
	}
	return n
}

func (u Use) where() string {
	return policy.Request{Host: u.Host, Port: u.Port, Protocol: policy.TCP}.String()
}

// request describes the request of u.
func (u Use) request() string { return shown(u.HTTP.Method) + " " + shown(u.HTTP.Path) }

// shown returns a text of a sandbox for users: bounded, and without control characters.
func shown(text string) string {
	const most = 200
	quoted := strconv.QuoteToASCII(text[:min(len(text), most)])
	return quoted[1 : len(quoted)-1]
}

// bodies returns the sites in the body of u that may get the secret of g. A placeholder in the head meets ModeRequire.
func (g Issued) bodies(u Use, inHead bool) (all []claim) {
	for _, s := range g.Sites {
		if s.InBody() && g.covers(u) && s.At.Allow(&u.HTTP) {
			c := g.claim(u, s, "")
			if c.Placeholders = g.placeholders(); inHead {
				c.Mode = ModeReplace
			}
			all = append(all, c)
		}
	}
	return all
}

// http reports whether g has a site in requests of HTTP.
func (g Grant) http() bool {
	return slices.ContainsFunc(g.Sites, func(s Site) bool { return s.InBody() || s.inHead() })
}

// claim returns the claim of g to a site of u.
func (g Issued) claim(u Use, s Site, placeholder string) claim {
	c := claim{Put: Put{Grant: g.Name, Secret: g.Secret, Kind: g.Kind, Mode: g.Mode, Site: s, Placeholder: placeholder,
		Ask: g.Ask}}
	for _, h := range g.Hosts {
		if h.Matches(u.Host) {
			n := len(h.String())
			if !strings.HasPrefix(h.String(), "*") {
				n += 1 << 10 // a name wins over a pattern of the same length
			}
			c.host = max(c.host, n)
		}
	}
	for _, p := range g.Allow.Paths {
		if (policy.Requests{Paths: []string{p}}).Allow(&u.HTTP) {
			c.path = max(c.path, len(p))
		}
	}
	return c
}

// reaches reports whether g is for the destination of u.
func (g Grant) reaches(u Use) bool {
	return (u.TLS || g.Insecure) && slices.Contains(g.Ports, u.Port) &&
		slices.ContainsFunc(g.Hosts, func(p policy.Pattern) bool { return p.Matches(u.Host) })
}

// covers reports whether g is for the destination of u, and allows the request.
func (g Issued) covers(u Use) bool { return !g.Revoked && g.reaches(u) && g.Allow.Allow(&u.HTTP) }

// limits returns why u may not use g, which is for its destination; nil if it may. What the preset denies is denied
// whatever the grant allows.
func (g Grant) limits(u Use, c Count, now time.Time) *Refusal {
	for _, d := range g.Deny {
		switch ambiguous := !(policy.Requests{Paths: []string{"/*"}}).Allow(&u.HTTP); {
		case !d.Forbid(&u.HTTP) && !d.Forbid(u.bare()):
		case ambiguous:
			return &Refusal{Reason: "the path " + shown(u.HTTP.Path) + " is ambiguous, and may be one that preset " + g.Preset +
				" denies", Hint: "send a path without escapes, such as the number of a project in place of its name"}
		default:
			return &Refusal{Reason: "preset " + g.Preset + " denies " + u.request() + ", which " + d.Why,
				Hint: "if that is meant, name the path in except"}
		}
	}
	switch {
	case strings.EqualFold(u.HTTP.Method, "CONNECT"), strings.EqualFold(u.HTTP.Method, "TRACE"):
		return &Refusal{Reason: "method " + u.HTTP.Method + " cannot carry a secret", Hint: "use another method"}
	case u.overrides():
		return &Refusal{Reason: "the query names another method in _method", Hint: "send the request with that method"}
	case !g.Allow.Allow(&u.HTTP):
		return &Refusal{Reason: "grant " + g.Name + " does not allow " + u.request()}
	case !g.Until.IsZero() && !now.Before(g.Until):
		return &Refusal{Reason: "grant " + g.Name + " has expired"}
	case g.Uses > 0 && c.Used >= g.Uses:
		return &Refusal{Reason: "grant " + g.Name + " is used up"}
	case g.Rate.Count > 0 && c.Recent >= g.Rate.Count:
		return &Refusal{Reason: "grant " + g.Name + " allows " + g.Rate.String() + " requests", Hint: "try again later"}
	}
	return nil
}
