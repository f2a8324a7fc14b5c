//go:build linux

package policies

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// maxPolicyFiles is the maximum number of files of one policy.
const maxPolicyFiles = 64

// Flag returns the origin of settings in a request that are not in files.
func Flag(name string) policy.Origin { return policy.Origin{Source: name} }

// flagsDocument returns the settings in a request that are not in files, as a document.
func flagsDocument(req wire.CreateRequest) (d policy.Document, err error) {
	if req.Tier != "" && req.Tier != "auto" {
		d.Tier = &policy.Said[policy.Tier]{Value: policy.Tier(req.Tier), At: Flag("--tier")}
	}
	if req.Net != "" {
		net, err := policy.ParseNet(req.Net)
		if err != nil {
			return d, err
		}
		d.Network = &policy.Said[policy.Access]{Value: policy.Access{Mode: net}, At: Flag("--net")}
	}
	limits, err := policy.ParseLimits(req.Limits)
	if err != nil {
		return d, err
	}
	d.Limits = limits.Said(Flag("--limit"))
	for _, kv := range req.Env {
		k, v, err := policy.ParseEnv(kv)
		if err != nil {
			return d, err
		}
		if d.Env == nil {
			d.Env = map[string]policy.Said[string]{}
		}
		d.Env[k] = policy.Said[string]{Value: v, At: Flag("--env")}
	}
	return d, nil
}

// layers parses the files of a request. warnings are possible mistakes in them.
func layers(files []wire.PolicyFile) (out []policy.Layer, warnings []string, err error) {
	if len(files) > maxPolicyFiles {
		return nil, nil, fault.New(fault.Invalid, "too many policy files: %d; the limit is %d", len(files), maxPolicyFiles).
			WithHint("merge some of them")
	}
	levels := []string{policy.User: wire.PolicyUser, policy.Project: wire.PolicyProject, policy.Flags: wire.PolicyFlags}
	for _, f := range files {
		level := slices.Index(levels, f.Level)
		switch {
		case level < 0:
			return nil, nil, fault.New(fault.Invalid, "unknown policy level %q", f.Level).
				WithHint("use user, project or flags")
		case level == int(policy.Flags) && strings.HasPrefix(f.Name, "--"): // a flag, not a file
		case !path.IsAbs(f.Name) || path.Clean(f.Name) != f.Name:
			return nil, nil, fault.New(fault.Invalid, "invalid policy file %q: must be an absolute path", f.Name).
				WithHint("for example: /home/me/project/coppice.yaml")
		}
		d, err := policy.Parse(f.Name, []byte(f.Text))
		if err != nil {
			return nil, nil, err
		}
		out = append(out, policy.Layer{Level: policy.Level(level), Document: d})
		warnings = append(warnings, texts(d.Warnings)...)
	}
	return out, warnings, nil
}

func texts(problems policy.Problems) (out []string) {
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

// compose merges layers into a policy that can be enforced. notes are settings without effect.
func compose(all ...policy.Layer) (p policy.Policy, notes []string, err error) {
	if p, err = policy.Merge(all...); err != nil {
		return p, nil, err
	}
	p, err = p.Enforceable()
	return p, texts(p.Notes), err
}

// Ask returns the policy for a new sandbox. warnings are possible mistakes, and settings without effect.
func Ask(req wire.CreateRequest) (p policy.Policy, warnings []string, err error) {
	flags, err := flagsDocument(req)
	if err != nil {
		return p, nil, err
	}
	all, warnings, err := layers(req.Policy)
	if err != nil {
		return p, nil, err
	}
	p, notes, err := compose(append(all, policy.Layer{Level: policy.Flags, Document: flags})...)
	if err != nil {
		return p, nil, err
	}
	section, err := grant.Merge(all...)
	p.Secrets, notes = section.Given, append(notes, texts(section.Notes)...)
	switch {
	case err != nil:
		return p, nil, err
	case flags.Network != nil && flags.Network.Value.Mode != p.Network.Mode:
		return p, nil, fault.New(fault.Invalid, "--net %s conflicts with network %s by %s",
			flags.Network.Value.Mode, p.Network.Mode, p.NetAt).
			WithHint("omit one of them")
	}
	return p, append(warnings, notes...), nil
}

// Secrets returns the grants that the files of a request name.
func Secrets(files []wire.PolicyFile) (grant.Section, error) {
	all, _, err := layers(files)
	if err != nil {
		return grant.Section{}, err
	}
	return grant.Merge(all...)
}

// environment returns the environment of a policy for a record; variables of the request are kept as written.
func environment(p policy.Policy, said []string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		if !slices.ContainsFunc(said, func(kv string) bool { return strings.HasPrefix(kv, k+"=") }) {
			out = append(out, k+"="+p.Env[k].Value)
		}
	}
	return append(out, said...)
}

// Refork sets the policy of a fork's record, made from files and the parent's policy, in the requested tier; "" leaves
// the tier to the policy. rec is the record of the parent, as changed for the fork. choose sets the tier of rec if the
// policy names another one. warnings are possible mistakes, and settings without effect.
func (s *Policies) Refork(ctx context.Context, rec *meta.Sandbox, files []wire.PolicyFile, tier string,
	choose func(policy.Policy) error) (warnings []string, err error) {
	if tier != "" && tier != rec.Tier && (tier == workspace || rec.Tier == workspace) {
		return nil, fault.New(fault.Unsupported, "cannot fork a sandbox of tier %s into tier %s: "+
			"a sandbox of tier workspace has no root file system", rec.Tier, tier).
			WithHint("omit --tier")
	}
	base, err := s.Placed(ctx, rec)
	if err != nil {
		return nil, err
	}
	all, warnings, err := layers(files)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		for name, s := range l.Document.Secrets {
			return nil, fault.New(fault.Unsupported, "the policy of a fork cannot give grants, as %s does", s.At).
				WithHint("remove secrets, and give the grant afterwards: coppice grant NAME %s", name)
		}
	}
	all = append(all, base.Layer(policy.User))
	if tier != "" {
		flags, err := flagsDocument(wire.CreateRequest{Tier: tier})
		if err != nil {
			return nil, err
		}
		all = append(all, policy.Layer{Level: policy.Flags, Document: flags})
	}
	p, notes, err := compose(all...)
	switch {
	case err != nil:
		return nil, err
	case p.Limits.DiskBytes != base.Limits.DiskBytes:
		return nil, fault.New(fault.Unsupported, "cannot set limits.disk for a fork: it inherits the disk limit of its "+
			"parent").WithHint("remove limits.disk")
	}
	if rec.Tier != string(p.Tier.Value) {
		if err := choose(p); err != nil {
			return nil, err
		}
		p.Tier.Value = policy.Tier(rec.Tier)
	}
	p.Secrets = base.Secrets
	if err := hidesNothing(p, rec.Tier); err != nil {
		return nil, err
	}
	if _, err := hiddenIn(p, rec.Root, s.config.Homes); err != nil {
		return nil, err
	}
	if rec.Ignored, err = s.Ignored(p, rec); err != nil {
		return nil, err
	}
	if _, err := s.allows(p, rec); err != nil {
		return nil, err
	}
	if err := s.limitable(p.Limits, rec.Tier); err != nil {
		return nil, err
	}
	Configure(rec, p, nil)
	return append(warnings, notes...), Pin(rec, p)
}
