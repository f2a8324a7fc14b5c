package grant

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Request is a grant that a project's file asks for.
type Request struct {
	Name     string
	Root     string // the directory of the file
	At       policy.Origin
	Optional bool
	For      string // such as 8h; "" is unlimited
	Grant    Grant
}

// Digest identifies what an owner consents to: the grant, with everything that a preset says about it, and the
// directory of the project. A change of any of them is another digest.
func (r Request) Digest() string {
	r.Grant.Until = time.Time{}
	text, err := json.Marshal(struct {
		Version         int
		Root, Name, For string
		Hosts           []string // Grant.Hosts is not in its JSON
		Grant           Grant
	}{1, strconv.Quote(r.Root), r.Name, r.For, patterns(r.Grant.Hosts), r.Grant})
	if err != nil {
		return "" // a Grant can always be marshaled; "" is no consent
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Term is a part of a request, for people. It has printable ASCII characters only.
type Term struct{ What, Value string }

// Terms describes r in full.
func (r Request) Terms() (all []Term) {
	g := r.Grant
	say := func(what, value string) { all = append(all, Term{what, value}) }
	list := func(what string, values []string, none string) { say(what, cmp.Or(strings.Join(values, ", "), none)) }
	say("grant", r.Name)
	say("secret", g.Secret)
	list("hosts", patterns(g.Hosts), "")
	if foreign := r.foreign(); foreign != "" {
		say("", foreign)
	}
	if !slices.Equal(g.Ports, []uint16{443}) {
		var ports []string
		for _, p := range g.Ports {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		list("ports", ports, "")
	}
	list("methods", g.Allow.Methods, "all")
	rest := "all"
	if len(g.Deny) > 0 {
		rest = "all but those that preset " + g.Preset + " refuses"
	}
	list("paths", words(g.Allow.Paths), rest)
	for _, key := range slices.Sorted(maps.Keys(g.Allow.Query)) {
		say("query", strings.Join(words([]string{key, g.Allow.Query[key]}), "="))
	}
	for _, s := range g.Sites {
		say("site", strings.ReplaceAll(s.String(), " ", "%20")+only(s.At))
	}
	for _, k := range g.HostKeys {
		say("host key", k.Fingerprint)
	}
	if g.Mode != ModeReplace {
		say("mode", string(g.Mode))
	}
	list("variables", g.Env, "none")
	say("for", cmp.Or(r.For, "no end"))
	say("uses", map[bool]string{true: "unlimited", false: strconv.FormatInt(g.Uses, 10)}[g.Uses == 0])
	for _, one := range []Term{{"rate", g.Rate.String()}, {"ask", string(g.Ask)}, {"forks", string(g.Fork)}} {
		if one.Value != "" && one.Value != string(AskNever) && one.Value != string(ForkNone) {
			all = append(all, one)
		}
	}
	return all
}

// only describes the requests that a site is limited to.
func only(at policy.Requests) string {
	if at.Methods == nil && at.Paths == nil {
		return ""
	}
	return " of " + strings.Join(append(slices.Clone(at.Methods), words(at.Paths)...), " ")
}

// words returns texts without spaces and commas, which could look like other entries, or like other lines.
func words(all []string) (out []string) {
	for _, s := range all {
		out = append(out, strings.NewReplacer(" ", "%20", ",", "%2C").Replace(s))
	}
	return out
}

// foreign warns of hosts that the service that r is named after does not have; "" if there are none.
func (r Request) foreign() string {
	preset := cmp.Or(r.Grant.Preset, DefaultPreset(r.Grant.Secret))
	if preset == "" {
		return ""
	}
	own, err := Item{Preset: preset}.Grant(r.Name, time.Time{})
	if err != nil {
		return ""
	}
	var others []string
	for _, h := range r.Grant.Hosts {
		if !slices.ContainsFunc(own.Hosts, h.Within) {
			others = append(others, h.String())
		}
	}
	if others == nil {
		return ""
	}
	return "WARNING: not hosts of " + preset + ": " + strings.Join(others, ", ")
}

func patterns(all []policy.Pattern) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}
