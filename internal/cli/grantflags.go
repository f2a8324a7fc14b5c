package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

// granting has the flags of a grant. Its zero value is a grant by the preset of its name.
type granting struct {
	grant.Flags
	loginFlags
	presets          *pflag.Flag // the flag of Preset
	kind, mode       string
	except, env      []string
	ports            []uint
	rate, ask, fork  string
	insecure         bool
	lasts            time.Duration
	name, secretName string
}

// add adds the flags.
func (g *granting) add(f *pflag.FlagSet) {
	f.StringVar(&g.Preset, "preset", "",
		"hosts, sites and refused requests of `PRESET` (default: that with the name of the grant)")
	g.presets = f.Lookup("preset")
	f.StringArrayVar(&g.Hosts, "host", nil, "allow requests to `HOST`, as in api.example.com; repeatable")
	f.StringArrayVar(&g.Methods, "method", nil, "allow only `METHOD`, as in GET; repeatable")
	f.StringArrayVar(&g.Paths, "path", nil, "allow only `PATH`, as in '/repos/acme/*'; repeatable")
	f.BoolVar(&g.Bearer, "bearer", false, "the secret is in Authorization: Bearer")
	f.BoolVar(&g.Basic, "basic", false, "the secret is the password of Authorization: Basic, as of git")
	f.StringArrayVar(&g.Headers, "header", nil, "the secret is in header `NAME[:WORD]`, after WORD; repeatable")
	f.StringArrayVar(&g.Queries, "query", nil, "the secret is the value of `KEY` in the query; repeatable")
	f.StringArrayVar(&g.Bodies, "body", nil, "the secret is the string at `POINTER` in JSON bodies, as in /auth/token, "+
		"of requests with --method and --path; repeatable")
	f.StringArrayVar(&g.Forms, "form", nil, "the secret is the value of `FIELD` in forms, of requests with --method "+
		"and --path; repeatable")
	f.StringArrayVar(&g.Signed, "sigv4", nil, "the secret, an access key of AWS, signs requests for `REGION/SERVICE`, as "+
		"in eu-west-1/s3; * is any; repeatable")
	f.StringArrayVar(&g.Sites, "site", nil,
		"the secret is at `SITE`: cookie:NAME, path, basic:user, git; repeatable")
	f.DurationVar(&g.lasts, "for", 0, "expire after `TIME`, as in 8h (default: never)")
	f.Int64Var(&g.Uses, "uses", 0, "expire after `N` requests (default: unlimited)")
	f.StringVar(&g.rate, "rate", "", "refuse more requests than `RATE`, as in 10/s")
	f.StringVar(&g.ask, "ask", "",
		"hold requests until they are approved (\"coppice net approve\"): never (default), first (to each host), each")
	f.StringArrayVar(&g.env, "env", nil,
		"set `VARIABLE` of commands to the placeholder; repeatable (default: the preset's)")
	f.StringVar(&g.fork, "fork", "", "whether forks get the grant, with new placeholders: none (default), reissue")
	f.StringArrayVar(&g.except, "except", nil, "allow `PATH` although the preset refuses it; repeatable")
	f.StringVar(&g.mode, "mode", "",
		"replace (default) the placeholder; require it; add the secret, without a placeholder")
	f.StringVar(&g.kind, "kind", "", "kind of the placeholder, `KIND` (default: that of the secret)")
	f.UintSliceVar(&g.ports, "port", nil, "`PORT` of the hosts (default: 443); repeatable")
	g.loginFlags.add(f)
	f.BoolVar(&g.insecure, "insecure", false, "send the secret without TLS, to --port")
}

// named sets the names of the grant and its secret: GRANT[=SECRET].
func (g *granting) named(text string) {
	g.name, g.secretName, _ = strings.Cut(text, "=")
}

// parseGranting parses the value of --grant: GRANT[=SECRET], and flags of "coppice grant" without their dashes.
func parseGranting(text string) (*granting, error) {
	var g granting
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	g.add(f)
	words := strings.Split(text, ",")
	g.named(words[0])
	for _, word := range words[1:] {
		key, value, given := strings.Cut(word, "=")
		flag := f.Lookup(key)
		if flag == nil {
			var all []string
			f.VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
			hint := "as in: --grant github,for=8h,uses=100; see: coppice help grant"
			if near := fault.Nearest(key, all); near != "" {
				hint = "did you mean " + near + "?"
			}
			return nil, &usageError{msg: fmt.Sprintf("invalid --grant %s: unknown setting %q", g.name, key), hint: hint}
		}
		if !given {
			value = flag.NoOptDefVal
		}
		if err := f.Set(key, value); err != nil {
			return nil, usagef("invalid --grant %s: invalid %s %q", g.name, key, value)
		}
	}
	return &g, nil
}

// item returns the grant.
func (g *granting) item() (grant.Item, error) {
	if g.lasts < 0 {
		return grant.Item{}, usagef("invalid --for %s: must be positive", g.lasts)
	}
	if g.Uses < 0 {
		return grant.Item{}, usagef("invalid --uses %d: must be positive", g.Uses)
	}
	flags := g.Flags
	if flags.TTL = ""; g.lasts > 0 {
		flags.TTL = g.lasts.String()
	}
	if !g.presets.Changed {
		flags.Preset = grant.DefaultPreset(g.name)
	}
	i, err := flags.Item(g.secretName)
	if err != nil {
		return i, err
	}
	if err := g.fill(g.name, &i); err != nil {
		return i, err
	}
	for _, p := range g.ports {
		if p == 0 || p > 0xffff {
			return i, usagef("invalid --port %d: must be 1 to 65535", p)
		}
		i.Ports = append(i.Ports, uint16(p))
	}
	i.Kind, i.Mode, i.Except, i.Env = g.kind, g.mode, g.except, g.env
	i.Rate, i.Ask, i.Fork, i.Insecure = g.rate, g.ask, g.fork, g.insecure
	return i, nil
}

// checked returns the grant for the daemon, and as the gate will understand it.
func (g *granting) checked(now time.Time) (spec wire.GrantSpec, gives grant.Grant, err error) {
	i, err := g.item()
	if err != nil {
		return spec, gives, err
	}
	if i.Preset == "" && i.Hosts == nil {
		return spec, gives, &usageError{msg: "grant " + g.name + " requires --preset or --host",
			hint: "the presets are " + strings.Join(grant.PresetNames(), ", ")}
	}
	if gives, err = i.Grant(g.name, now); err != nil {
		return spec, gives, err
	}
	spec = wire.GrantSpec{Secret: i.Secret, Preset: i.Preset, Kind: i.Kind, Hosts: i.Hosts, Ports: i.Ports,
		Methods: i.Methods, Paths: i.Paths, Except: i.Except, Mode: i.Mode, Env: i.Env, For: i.For, Uses: i.Uses,
		Rate: i.Rate, Ask: i.Ask, Query: i.Query, Fork: i.Fork, Insecure: i.Insecure, HostKeys: i.HostKeys}
	for _, s := range i.Sites {
		spec.Sites = append(spec.Sites, wire.GrantSite(s))
	}
	return spec, gives, nil
}

// destinations returns the hosts of a grant with their ports, as rules.
func destinations(g grant.Grant) (rules []string) {
	for _, h := range g.Hosts {
		for _, p := range g.Ports {
			rules = append(rules, h.String()+":"+strconv.Itoa(int(p)))
		}
	}
	return rules
}

// grantsOf returns the grants of the flags --grant for a new sandbox, and the rules that let it reach their hosts.
func (a *app) grantsOf(ctx context.Context, texts []string) (
	specs map[string]wire.GrantSpec, rules []policy.Rule, err error,
) {
	for _, text := range texts {
		g, err := parseGranting(text)
		if err != nil {
			return nil, nil, err
		}
		if err := a.completeSSH(ctx, g); err != nil {
			return nil, nil, err
		}
		spec, gives, err := g.checked(a.now())
		if err != nil {
			return nil, nil, err
		}
		if _, twice := specs[g.name]; twice {
			return nil, nil, usagef("--grant %s is given twice", g.name)
		}
		if specs == nil {
			specs = map[string]wire.GrantSpec{}
		}
		specs[g.name] = spec
		for _, d := range destinations(gives) {
			r, err := policy.ParseRule(d, false)
			if err != nil {
				return nil, nil, err
			}
			rules = append(rules, r)
		}
	}
	return specs, rules, nil
}
