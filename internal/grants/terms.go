//go:build linux

package grants

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
)

// supported are the sites that a gate can fill.
var supported = [...]grant.In{grant.InHeader, grant.InBearer, grant.InBasic, grant.InGit, grant.InQuery, grant.InCookie,
	grant.InPath, grant.InForm, grant.InJSON, grant.InSigV4, grant.InSSH}

// Check returns the first error in a grant that a client asks for.
func Check(name string, spec wire.GrantSpec, now time.Time) error {
	_, _, err := parse(name, spec, now)
	return err
}

// parse checks a grant that a client asks for, and returns it as it is stored, and as it is decided.
func parse(name string, spec wire.GrantSpec, now time.Time) (item json.RawMessage, g grant.Grant, err error) {
	if item, err = json.Marshal(spec); err != nil {
		return nil, g, err
	}
	if g, err = terms(name, item, now); err != nil {
		return nil, g, err
	}
	for _, s := range g.Sites {
		if !slices.Contains(supported[:], s.In) {
			return nil, g, fault.New(fault.Unsupported, "grant %s: site %s is not supported yet", name, s).
				WithHint("name another site, such as --bearer or --header X-Api-Key")
		}
	}
	return item, g, nil
}

// terms returns the grant of a stored item that was given at a time.
func terms(name string, item json.RawMessage, given time.Time) (grant.Grant, error) {
	d := json.NewDecoder(bytes.NewReader(item))
	d.DisallowUnknownFields()
	var i grant.Item
	if err := d.Decode(&i); err != nil {
		return grant.Grant{}, fault.New(fault.Corrupt, "grant %s: malformed record", name).Because(err).
			WithHint("revoke it, and give it again")
	}
	return i.Grant(name, given)
}

// able returns why a sandbox can have no grants, or nil.
func able(rec *meta.Sandbox) error {
	if rec.Tier != string(policy.Workspace) && policies.Gated(rec) {
		return nil
	}
	return fault.New(fault.Unsupported, "sandbox %s cannot have grants: no gate inspects HTTPS in tier %s", rec.Name,
		rec.Tier).
		WithHint("create one that has: coppice create --from %s --tier supervised", rec.Name)
}

// issued returns a stored grant as it is decided.
func issued(row meta.Grant) (grant.Issued, error) {
	g, err := terms(row.Name, row.Item, row.Given)
	if err != nil {
		return grant.Issued{}, err
	}
	if row.Kind != "" {
		g.Kind = grant.Kind(row.Kind)
	}
	return grant.Issued{Grant: g, Placeholder: row.Placeholder, Aliases: row.Aliases,
		Revoked: row.State != wire.GrantLive}, nil
}

// shown returns a stored grant for clients.
func shown(row meta.Grant) (wire.Grant, error) {
	is, err := issued(row)
	if err != nil {
		return wire.Grant{}, err
	}
	w := wire.Grant{Name: row.Name, Secret: row.Secret, Preset: is.Preset, Kind: row.Kind, Hosts: hosts(is.Grant),
		Sites: []string{}, Methods: is.Allow.Methods, Paths: is.Allow.Paths, Mode: string(is.Mode), Env: is.Env,
		Placeholder: row.Placeholder, Fork: string(is.Fork), State: row.State, Why: row.Why, Given: row.Given,
		Uses: is.Uses, Used: row.Used}
	if is.Ask != grant.AskNever {
		w.Ask = string(is.Ask)
	}
	for _, s := range is.Sites {
		w.Sites = append(w.Sites, s.String())
	}
	for _, k := range is.HostKeys {
		w.HostKeys = append(w.HostKeys, k.String())
	}
	if !row.Until.IsZero() {
		w.Until = &row.Until
	}
	if !row.LastUsed.IsZero() {
		w.LastUsed = &row.LastUsed
	}
	if !row.Refused.IsZero() {
		w.Refused, w.RefusedWhy = &row.Refused, row.RefusedWhy
	}
	return w, nil
}

// hosts returns the hosts of a grant as texts.
func hosts(g grant.Grant) []string {
	out := make([]string, len(g.Hosts))
	for i, h := range g.Hosts {
		out[i] = h.String()
	}
	return out
}
