package grant

import (
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Item is a grant in the section secrets of a policy, or in the API; its key there is the name. The parser refuses
// unknown fields.
type Item struct {
	Secret   string            `yaml:"secret,omitempty" json:"secret,omitempty"` // default: the name
	Preset   string            `yaml:"preset,omitempty" json:"preset,omitempty"` // default of the other fields
	Kind     string            `yaml:"kind,omitempty" json:"kind,omitempty"`
	Hosts    []string          `yaml:"hosts,omitempty" json:"hosts,omitempty"`
	Ports    []uint16          `yaml:"ports,omitempty" json:"ports,omitempty"` // default: 443
	Methods  []string          `yaml:"methods,omitempty" json:"methods,omitempty"`
	Paths    []string          `yaml:"paths,omitempty" json:"paths,omitempty"`
	Query    map[string]string `yaml:"query,omitempty" json:"query,omitempty"`
	Sites    []SiteItem        `yaml:"sites,omitempty" json:"sites,omitempty"`
	Except   []string          `yaml:"except,omitempty" json:"except,omitempty"` // denied paths of the preset to allow
	Mode     string            `yaml:"mode,omitempty" json:"mode,omitempty"`
	Env      []string          `yaml:"env,omitempty" json:"env,omitempty"`
	For      string            `yaml:"for,omitempty" json:"for,omitempty"` // such as 8h
	Uses     int64             `yaml:"uses,omitempty" json:"uses,omitempty"`
	Rate     string            `yaml:"rate,omitempty" json:"rate,omitempty"` // such as 10/s
	Ask      string            `yaml:"ask,omitempty" json:"ask,omitempty"`
	Fork     string            `yaml:"fork,omitempty" json:"fork,omitempty"`
	Insecure bool              `yaml:"insecure,omitempty" json:"insecure,omitempty"`   // requires ports
	HostKeys []string          `yaml:"host_keys,omitempty" json:"host_keys,omitempty"` // of SSH servers: see ParseHostKey
}

// SiteItem is a Site in an Item.
type SiteItem struct {
	In       string   `yaml:"in" json:"in"`
	Name     string   `yaml:"name,omitempty" json:"name,omitempty"`
	Part     string   `yaml:"part,omitempty" json:"part,omitempty"`
	Pointer  string   `yaml:"pointer,omitempty" json:"pointer,omitempty"`
	Methods  []string `yaml:"methods,omitempty" json:"methods,omitempty"`
	Paths    []string `yaml:"paths,omitempty" json:"paths,omitempty"`
	Services []string `yaml:"services,omitempty" json:"services,omitempty"`
	Regions  []string `yaml:"regions,omitempty" json:"regions,omitempty"`
}

// Flags are the flags of coppice grant NAME SECRET.
type Flags struct {
	Preset                   string
	Hosts, Methods, Paths    []string
	Headers, Queries, Bodies []string // X-Api-Key or Authorization:token; keys; JSON pointers
	Forms, Signed, Sites     []string // fields; REGION/SERVICE; sites in the short form
	Bearer, Basic            bool
	TTL                      string
	Uses                     int64
}

// Item returns the item that the flags describe.
func (f Flags) Item(secret string) (Item, error) {
	i := Item{Secret: secret, Preset: f.Preset, Hosts: f.Hosts, Methods: f.Methods, Paths: f.Paths, For: f.TTL,
		Uses: f.Uses}
	var texts []string
	if f.Bearer {
		texts = append(texts, string(InBearer))
	}
	if f.Basic {
		texts = append(texts, string(InBasic))
	}
	for _, list := range []struct {
		in    In
		names []string
	}{{InHeader, f.Headers}, {InQuery, f.Queries}, {InJSON, f.Bodies}, {InForm, f.Forms}, {InSigV4, f.Signed}} {
		for _, name := range list.names {
			texts = append(texts, string(list.in)+":"+name)
		}
	}
	for _, text := range append(texts, f.Sites...) {
		s, err := ParseSite(text)
		if err != nil {
			return Item{}, err
		}
		one := SiteItem{In: string(s.In), Name: s.Name, Part: s.Part, Pointer: s.Pointer, Services: s.Services,
			Regions: s.Regions}
		if s.InBody() { // Grant refuses a site in all bodies
			one.Methods, one.Paths = f.Methods, f.Paths
		}
		i.Sites = append(i.Sites, one)
	}
	return i, nil
}

// Grant returns the grant that i describes, given at now. Errors are of kind Invalid.
func (i Item) Grant(name string, now time.Time) (g Grant, err error) {
	defer func() {
		if err != nil && !strings.Contains(err.Error(), "grant "+name+":") {
			err = fault.Wrap(err, "grant %s", name)
		}
	}()
	var refused []string
	switch {
	case i.Preset != "":
		if refused, err = i.fill(&g); err != nil {
			return Grant{}, err
		}
	case i.Except != nil:
		return Grant{}, fault.New(fault.Invalid, "except requires a preset").WithHint("omit except")
	}
	g.Name, g.Secret, g.Preset, g.Uses, g.Insecure = name, i.Secret, i.Preset, i.Uses, i.Insecure
	if g.Secret == "" {
		g.Secret = name
	}
	if err = i.words(&g); err != nil {
		return Grant{}, err
	}
	if i.Hosts != nil {
		g.Hosts = nil
	}
	for _, h := range i.Hosts {
		p, err := policy.ParsePattern(h)
		if err != nil {
			return Grant{}, err
		}
		g.Hosts = append(g.Hosts, p)
	}
	if g.Allow, err = policy.ParseRequests(i.Methods, i.Paths); err != nil {
		return Grant{}, err
	}
	g.Allow.Query = i.Query
	if i.Sites != nil {
		g.Sites = nil
	}
	for _, one := range i.Sites {
		s, err := one.site()
		if err != nil {
			return Grant{}, err
		}
		g.Sites = append(g.Sites, s)
	}
	for at := range g.Sites {
		if g.Sites[at].In == InSigV4 {
			g.Sites[at].Refused = refused
		}
	}
	if i.Env != nil {
		g.Env = i.Env
	}
	if i.For != "" {
		d, err := time.ParseDuration(i.For)
		if err != nil || d <= 0 {
			return Grant{}, fault.New(fault.Invalid, "invalid duration %q: must be positive", i.For).
				WithHint("use a duration such as 30m or 8h")
		}
		g.Until = now.Add(d)
	}
	if i.Insecure && i.Ports == nil {
		return Grant{}, fault.New(fault.Invalid, "insecure requires ports").WithHint("name them, such as ports: [8080]")
	}
	if g.Ports = i.Ports; g.Ports == nil {
		g.Ports = []uint16{443}
		if g.SSHUser() != "" {
			g.Ports = []uint16{22}
		}
	}
	if g.SSHUser() != "" && i.Mode == "" {
		g.Mode = ModeAdd // the gate logs in, without a placeholder
	}
	for _, text := range i.HostKeys {
		k, err := ParseHostKey(text)
		if err != nil {
			return Grant{}, err
		}
		g.HostKeys = append(g.HostKeys, k)
	}
	return g, g.Check()
}

// words parses the settings of i that are one word.
func (i Item) words(g *Grant) (err error) {
	if i.Kind != "" {
		if g.Kind, err = ParseKind(i.Kind); err != nil {
			return err
		}
	}
	if g.Mode = ModeReplace; i.Mode != "" {
		if g.Mode, err = oneOf("mode", i.Mode, []Mode{ModeReplace, ModeRequire, ModeAdd}); err != nil {
			return err
		}
	}
	if g.Ask = AskNever; i.Ask != "" {
		if g.Ask, err = oneOf("ask", i.Ask, []AskMode{AskNever, AskFirst, AskEach}); err != nil {
			return err
		}
	}
	if g.Fork = ForkNone; i.Fork != "" {
		if g.Fork, err = oneOf("fork", i.Fork, []ForkMode{ForkNone, ForkReissue}); err != nil {
			return err
		}
	}
	if i.Rate != "" {
		g.Rate, err = policy.ParseRate(i.Rate)
	}
	return err
}

// site parses one site.
func (i SiteItem) site() (Site, error) {
	at, err := policy.ParseRequests(i.Methods, i.Paths)
	if err != nil {
		return Site{}, err
	}
	return Site{In: In(i.In), Name: i.Name, Part: i.Part, Pointer: i.Pointer, At: at, Services: i.Services,
		Regions: i.Regions}.checked()
}
