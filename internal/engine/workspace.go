//go:build linux

package engine

import (
	"context"
	"path/filepath"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// settleWorkspace adapts a request to tier workspace, whose commands are processes of the host: they have the user and
// the network of the daemon, and their files are those of one directory.
func settleWorkspace(e *Engine, req *wire.CreateRequest, p *policy.Policy, rec *meta.Sandbox) (err error) {
	switch rec.User = userMe; {
	case req.User == "", req.User == userMe, req.User == userRoot && e.UID == 0:
	default:
		return fault.New(fault.Unsupported, "tier workspace cannot run commands as user %s: they run as the user of the "+
			"daemon", req.User).
			WithHint("omit --user, or use --tier process")
	}
	if p.Strong.Value {
		return fault.New(fault.Unsupported, "tier workspace is never strong, as %s requires", p.Strong.At).
			WithHint("use --tier process, or remove it")
	}
	switch {
	case p.NetAt.BuiltIn():
		p.Network = policy.Network{Mode: policy.NetHost}
	case p.Network.Mode == policy.NetHost:
	case p.Confine.Value == policy.ConfineOff:
		return fault.New(fault.Unsupported, "tier workspace with confine: off cannot enforce network %s of %s: commands "+
			"use the host's network", p.Network.Mode, p.NetAt).
			WithHint("remove confine: off, or use --tier process")
	case p.Network.Inspects():
		return policies.NoInspection(p.NetAt)
	}
	if fromHost(req.From) && req.Repo == nil {
		req.From, err = workingCopy(req.Dir, e.Home)
	}
	return err
}

// workingCopy returns the source of a sandbox of tier workspace without a repository: the current directory of the
// client, "" if it is unknown. home is COPPICE_HOME.
func workingCopy(dir, home string) (wire.Source, error) {
	const hint = "name a directory: coppice create --tier workspace --driver copy --from DIR; " +
		"or run it in a git repository"
	if dir == "" {
		return wire.Source{}, fault.New(fault.Invalid, "tier workspace requires a directory").WithHint(hint)
	}
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case err != nil:
		return wire.Source{}, fault.Wrap(err, "find the current directory")
	case real == "/", rootspec.Within(home, real), rootspec.Within(real, home):
		return wire.Source{}, fault.New(fault.Invalid, "cannot use the current directory %s in tier workspace, which "+
			"copies it: it contains Coppice's own files, %s", real, home).
			WithHint(hint)
	}
	return wire.Source{Kind: wire.SourceDir, Path: real}, nil
}

// told says how tier workspace confines commands on a host.
func told(p wire.ProbeReport, pol policy.Policy) string {
	it, ok := wire.ProbeItem{}, false
	for _, one := range p.Items {
		if one.Name == "landlock" {
			it, ok = one, true
		}
	}
	switch {
	case pol.Confine.Value == policy.ConfineOff:
		return "tier workspace keeps a history of the sandbox's directory and confines nothing: commands run as you, " +
			"with your files and network"
	case !ok || !it.OK:
		return "tier workspace, locked: commands run as you, under a filter for system calls, with your files, because " +
			"this host lacks Landlock"
	}
	net := "the host's network"
	switch pol.Network.Mode {
	case policy.NetOff:
		net = "no network"
	case policy.NetRules:
		net = "what the rules allow of the network"
	}
	return "tier workspace, locked: commands run as you, with the sandbox's directory, the system's programs, a " +
		"separate home and " + net + "; this is not a strong tier"
}

// Places are what a locked sandbox of tier workspace needs of the host. In Closed nothing is open but what Read and
// Write name; Homes are closed as well.
type Places struct{ Closed, Homes, Read, Write []string }

// locking returns how tier workspace confines a sandbox, and what it needs of the host; policy.ConfineOff in other
// tiers.
func locking(ctx context.Context, e *Engine, rec *meta.Sandbox) (how policy.Confine, at Places, err error) {
	if rec.Tier != tierWorkspace {
		return policy.ConfineOff, at, nil
	}
	if how, at.Read, at.Write, err = e.Policies.Shown(ctx, rec); err != nil || how == policy.ConfineOff {
		return how, at, err
	}
	at.Closed, at.Homes = []string{e.Home}, e.Homes
	if rec.Repo != nil {
		at.Read = append(at.Read, rec.Repo.Objects...) // the sandbox's repository borrows from them
	}
	return how, at, nil
}

// requires returns the error of a request whose tier auto chose. lack says why the host has no tier that confines; nil:
// it has one. err says what the request requires of the tier.
func requires(lack, err error) error {
	if lack == nil {
		return err
	}
	return fault.New(fault.KindOf(err), "%s; %s", err, lack).WithHint("%s", fault.HintOf(lack))
}
