package grant

import (
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// narrow adds a grant of the user's file, as far as a project's file that names it allows: the hosts, methods and paths
// of both, the shorter time and the fewer uses. Everything else is as the user's file says.
func (m *merger) narrow(name string, user, project policy.Said[policy.Secret]) {
	mine, g, ok := m.checked(name, user)
	if !ok {
		return
	}
	theirs, err := parse(name, project.Value)
	if err != nil {
		m.wrong(project.At, fault.HintOf(err), "%s", err)
		return
	}
	if !m.bounded(name, theirs, project.At) {
		return
	}
	n := narrower{merger: m, name: name, at: project.At, by: user.At}
	n.same(mine.Item, theirs.Item, g)
	if g.Mode == ModeRequire {
		n.required(theirs.Item)
	}
	mine.Hosts = n.hosts(g, mine.Hosts, theirs.Hosts)
	mine.Methods = n.lists("methods", mine.Methods, theirs.Methods, func(p, o string) bool { return p == o })
	mine.Paths = n.lists("paths", mine.Paths, theirs.Paths, policy.PathWithin)
	mine.For = n.shorter(mine.For, theirs.For)
	if u := theirs.Uses; u > 0 && (mine.Uses == 0 || u < mine.Uses) {
		mine.Uses = u
	} else if u > mine.Uses {
		n.noEffect("uses")
	}
	mine.Rate = n.slower(mine.Rate, theirs.Rate)
	asks := []string{"", string(AskNever), string(AskFirst), string(AskEach)}
	if slices.Index(asks, theirs.Ask) > slices.Index(asks, mine.Ask) {
		mine.Ask = theirs.Ask
	}
	switch {
	case theirs.Fork == string(ForkNone):
		mine.Fork = theirs.Fork
	case theirs.Fork != "" && theirs.Fork != mine.Fork:
		n.noEffect("fork")
	}
	if n.failed {
		return
	}
	if _, err := mine.Grant(name, time.Time{}); err != nil {
		m.wrong(project.At, fault.HintOf(err), "%s", err)
		return
	}
	m.put(name, mine, user.At)
}

// narrower narrows one grant.
type narrower struct {
	*merger
	name   string
	at, by policy.Origin // of the project's file, and of the user's
	failed bool
}

func (n *narrower) noEffect(what string) {
	n.note(n.at, "grant %s: %s has no effect, as it is not narrower than at %s", n.name, what, n.by)
}

func (n *narrower) fail(hint, format string, args ...any) {
	n.failed = true
	n.wrong(n.at, hint, "grant "+n.name+": "+format, args...)
}

// same reports settings of the project's file that are not those of the user's, and that cannot narrow a grant.
func (n *narrower) same(mine, theirs Item, g Grant) {
	if theirs.Secret != "" && theirs.Secret != g.Secret {
		n.fail("name the request differently, or remove secret", "the secret is %s, by %s", g.Secret, n.by)
	}
	if theirs.Preset != "" && theirs.Preset != mine.Preset {
		n.fail("name the request differently, or remove preset", "its preset is not that of %s", n.by)
	}
	for _, other := range []struct {
		what  string
		other bool
	}{
		{"kind", theirs.Kind != "" && theirs.Kind != mine.Kind},
		{"ports", theirs.Ports != nil && !slices.Equal(theirs.Ports, g.Ports)},
		{"query", theirs.Query != nil && !equalQuery(theirs.Query, mine.Query)},
		{"sites", theirs.Sites != nil && !equalSites(theirs.Sites, g.Sites)},
		{"host_keys", theirs.HostKeys != nil && !slices.Equal(theirs.HostKeys, mine.HostKeys)},
		{"except", theirs.Except != nil && !slices.Equal(theirs.Except, mine.Except)},
		{"mode", theirs.Mode != "" && theirs.Mode != string(g.Mode)},
		{"env", theirs.Env != nil && !slices.Equal(theirs.Env, g.Env)},
		{"insecure", theirs.Insecure && !mine.Insecure},
	} {
		if other.other {
			n.note(n.at, "grant %s: %s has no effect, as the grant is given at %s", n.name, other.what, n.by)
		}
	}
}

// required refuses what would narrow the requests in which a grant is required: the others could have any credential.
func (n *narrower) required(theirs Item) {
	for _, narrow := range []struct {
		what string
		said bool
	}{{"hosts", theirs.Hosts != nil}, {"methods", theirs.Methods != nil}, {"paths", theirs.Paths != nil},
		{"for", theirs.For != ""}} {
		if narrow.said {
			n.fail("remove "+narrow.what, "%s would let other requests have other credentials, which mode require of %s refuses",
				narrow.what, n.by)
		}
	}
}

func equalQuery(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func equalSites(items []SiteItem, sites []Site) bool {
	return slices.EqualFunc(items, sites, func(i SiteItem, s Site) bool {
		one, err := i.site()
		return err == nil && one.String() == s.String()
	})
}

// hosts returns the hosts of both; g is the user's grant, whose hosts may be those of its preset.
func (n *narrower) hosts(g Grant, mine, theirs []string) []string {
	if theirs == nil {
		return mine
	}
	var all []string
	for _, h := range g.Hosts {
		all = append(all, h.String())
	}
	var bad error
	both := n.lists("hosts", all, theirs, func(p, o string) bool {
		inner, err := policy.ParsePattern(p)
		outer, err2 := policy.ParsePattern(o)
		if err != nil || err2 != nil {
			bad = err
		}
		return err == nil && err2 == nil && inner.Within(outer)
	})
	if bad != nil && !n.failed {
		n.fail(fault.HintOf(bad), "%s", bad)
	}
	return both
}

// lists returns what is in both lists: the entries of each that lie within an entry of the other. nil is everything.
func (n *narrower) lists(what string, mine, theirs []string, within func(p, o string) bool) []string {
	switch {
	case theirs == nil:
		return mine
	case mine == nil:
		return theirs
	}
	var both []string
	for _, p := range theirs {
		switch {
		case slices.ContainsFunc(mine, func(o string) bool { return within(p, o) }):
			both = append(both, p)
		case !slices.ContainsFunc(mine, func(o string) bool { return within(o, p) }):
			n.note(n.at, "grant %s: %s %s has no effect, as it is not allowed at %s", n.name, what, p, n.by)
		}
	}
	for _, o := range mine {
		if !slices.Contains(both, o) && slices.ContainsFunc(theirs, func(p string) bool { return within(o, p) }) {
			both = append(both, o)
		}
	}
	if both == nil {
		n.fail("name some of those at "+n.by.String(), "none of its %s is allowed at %s", what, n.by)
	}
	return both
}

// shorter returns the shorter of two durations; "" is unlimited.
func (n *narrower) shorter(mine, theirs string) string {
	if theirs == "" {
		return mine
	}
	t, err := time.ParseDuration(theirs)
	if err != nil || t <= 0 {
		n.fail("use a duration such as 30m or 8h", "invalid duration %q", theirs)
		return mine
	}
	if m, err := time.ParseDuration(mine); mine == "" || err == nil && t < m {
		return theirs
	}
	if mine != theirs {
		n.noEffect("for")
	}
	return mine
}

// slower returns the slower of two rates; "" is unlimited.
func (n *narrower) slower(mine, theirs string) string {
	if theirs == "" {
		return mine
	}
	t, err := policy.ParseRate(theirs)
	if err != nil {
		n.fail(fault.HintOf(err), "%s", err)
		return mine
	}
	m, err := policy.ParseRate(mine)
	if mine == "" || err == nil && t.Compare(m) < 0 && t.Count <= m.Count {
		return theirs
	}
	if mine != theirs {
		n.noEffect("rate")
	}
	return mine
}
