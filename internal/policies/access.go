//go:build linux

package policies

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// accessIn returns which paths a policy makes writable in a sandbox whose base was the host directory root, and which
// host paths it mounts. A path stands for the same path inside and, for an imported directory, for its path after the
// import.
func accessIn(p policy.Policy, root string, homes []string) (a rootspec.Access, err error) {
	place := func(s policy.Said[policy.Path]) (rootspec.Place, error) {
		out := rootspec.Place{Said: s.Value.String()}
		for _, h := range s.Value.Within(homes...) {
			if h = strings.TrimSuffix(h, "/*"); !path.IsAbs(h) {
				return out, fault.New(fault.Invalid, "invalid path %s: its directory is unknown", h).
					WithHint("use an absolute path")
			}
			out.At = append(out.At, h)
			if root != "" && root != "/" && rootspec.Within(h, root) {
				out.At = append(out.At, path.Clean("/"+strings.TrimPrefix(h, root)))
			}
		}
		out.At = slices.DeleteFunc(out.At, func(h string) bool { // these paths belong to the sandbox
			return slices.ContainsFunc(rootspec.Reserved, func(r string) bool { return rootspec.Within(h, r) })
		})
		return out, nil
	}
	for _, s := range p.ReadOnly {
		at, err := place(s)
		if err != nil {
			return a, err
		}
		if len(at.At) == 0 {
			return a, fault.New(fault.Invalid, "cannot make %s read-only: it belongs to the sandbox itself, by "+
				"%s", s.Value, s.At).
				WithHint("omit it; nothing of the host or the history is in %s", strings.Join(rootspec.Reserved, ", "))
		}
		a.ReadOnly = append(a.ReadOnly, at)
	}
	a.Only = p.Writable != nil
	for _, s := range p.Writable {
		at, err := place(s)
		if err != nil {
			return a, err
		}
		if slices.Contains(at.At, "/") {
			a.Only = false
		}
		if len(at.At) > 0 {
			a.Writable = append(a.Writable, at)
		}
	}
	if !a.Only {
		a.Writable = nil
	}
	for _, s := range p.Mounts {
		from, to := s.Value.From.Within(homes...), s.Value.To.Within(homes...)
		if len(from) == 0 || len(to) == 0 || !path.IsAbs(from[0]) || !path.IsAbs(to[0]) || strings.HasSuffix(to[0], "/*") {
			return a, fault.New(fault.Invalid, "invalid mount %s: its directory is unknown", s.Value).
				WithHint("use absolute paths for both")
		}
		m := rootspec.HostMount{From: from[0], To: to[0], Write: s.Value.Write}
		// A read-only path is also read-only under the path of its mount.
		for i, s := range p.ReadOnly {
			for _, h := range s.Value.Within(homes...) {
				if h = strings.TrimSuffix(h, "/*"); rootspec.Within(m.From, h) {
					m.Write = false
				} else if rootspec.Within(h, m.From) {
					a.ReadOnly[i].At = append(a.ReadOnly[i].At, path.Join(m.To, strings.TrimPrefix(h, m.From)))
				}
			}
		}
		a.Mounts = append(a.Mounts, m)
	}
	return a, nil
}

// accessOf is accessIn for a sandbox, with its ignored paths, after checking that it is possible.
func accessOf(p policy.Policy, rec *meta.Sandbox, homes []string) (rootspec.Access, error) {
	a, err := accessIn(p, rec.Root, homes)
	if err != nil {
		return a, err
	}
	a.Ignored = ignoring(rec)
	if rec.Trial != nil && rec.Trial.Inside { // it must have no effect outside of its fork
		for i := range a.Mounts {
			a.Mounts[i].Write = false
		}
	}
	if rec.Tier == workspace && onlyShows(a) {
		return a, nil // where nothing is mounted, no path is reserved
	}
	return a, a.Validate()
}

// allows returns the writable paths and mounts of a sandbox, after checking that the mounts show nothing that is
// hidden.
func (s *Policies) allows(p policy.Policy, rec *meta.Sandbox) (rootspec.Access, error) {
	a, err := accessOf(p, rec, s.config.Homes)
	if err != nil {
		return a, err
	}
	if rec.Tier == workspace && p.Confine.Value != policy.ConfineOff && len(p.Decoys) == 0 && onlyShows(a) {
		return a, s.showsNothingHidden(p, a)
	}
	if rec.Tier == workspace && (!a.IsZero() || len(p.Decoys) > 0) {
		return a, fault.New(fault.Unsupported, "tier workspace does not support mounts, "+
			"which files.readonly, files.writable, files.mounts and files.decoys require").
			WithHint("use --tier process, or remove them; files.mounts can show a path where it is, with equal from " +
				"and to, unless confine is off")
	}
	if err := placeDecoys(p, rec.Root, s.config.Homes, a); err != nil || a.IsZero() {
		return a, err
	}
	return a, s.showsNothingHidden(p, a)
}

// onlyShows reports whether a only shows paths of the host where they are, which a locked workspace can do.
func onlyShows(a rootspec.Access) bool {
	for _, m := range a.Mounts {
		if m.From != m.To {
			return false
		}
	}
	a.Mounts = nil
	return a.IsZero()
}

// Shown says how tier workspace confines the commands of a sandbox and, if it does, which paths of the host the mounts
// of the policy let them read, and which change. It checks the host again, like Access.
func (s *Policies) Shown(ctx context.Context, rec *meta.Sandbox) (how policy.Confine, read, write []string, err error) {
	p, err := s.Of(ctx, rec)
	if err != nil || p.Confine.Value == policy.ConfineOff {
		return policy.ConfineOff, nil, nil, err
	}
	a, err := s.allows(p, rec)
	for _, m := range a.Mounts {
		if m.Write {
			write = append(write, m.From)
		} else {
			read = append(read, m.From)
		}
	}
	return p.Confine.Value, read, write, fault.Wrap(err, "enforce the policy of sandbox %s", rec.Name)
}

// showsNothingHidden refuses mounts of hidden host paths, of directories that contain them, and of the store, after
// resolving links and mounts.
func (s *Policies) showsNothingHidden(p policy.Policy, a rootspec.Access) error {
	if len(a.Mounts) == 0 {
		return nil
	}
	list, err := hiddenIn(p, "/", s.config.Homes)
	if err != nil {
		return err
	}
	k := rootfs.Mask{Below: rootspec.Stack{Host: true}, Hide: append(list, path.Clean(s.config.Home))}
	if k.Mounts, err = rootfs.HostMounts(); err != nil {
		return err
	}
	places, err := k.Places()
	if err != nil {
		return fault.Wrap(err, "read the hidden paths of the host")
	}
	for _, m := range a.Mounts {
		for _, h := range places {
			if rootspec.Within(m.From, h) || rootspec.Within(h, m.From) {
				return fault.New(fault.Denied, "cannot mount %s: %s is hidden", m.From, h).
					WithHint("mount only the parts that are not hidden; see: coppice policy explain")
			}
		}
	}
	return nil
}

// Access returns the writable paths and mounts of a sandbox; see Check. It checks the host again, where a link may
// lead to a hidden path by now.
func (s *Policies) Access(ctx context.Context, rec *meta.Sandbox) (rootspec.Access, error) {
	if rec.Tier == workspace {
		return rootspec.Access{}, nil // refused when the sandbox was created
	}
	p, err := s.Of(ctx, rec)
	if err != nil {
		return rootspec.Access{}, err
	}
	a, err := s.allows(p, rec)
	return a, fault.Wrap(err, "enforce the policy of sandbox %s", rec.Name)
}

// Places is Access without the check of the host: for a sandbox that was already started with it.
func (s *Policies) Places(ctx context.Context, rec *meta.Sandbox) (rootspec.Access, error) {
	p, err := s.Of(ctx, rec)
	if err != nil || rec.Tier == workspace {
		return rootspec.Access{}, err
	}
	return accessOf(p, rec, s.config.Homes)
}
