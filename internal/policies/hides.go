//go:build linux

package policies

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// maxHidden is the maximum number of cached results of Hides.
const maxHidden = 1 << 15

// Hides returns the hidden paths inside a sandbox, and those of decoys: absolute, with an optional * as last part. In
// a copy of the host the same paths are hidden as on the host. With another base, built-in rules do not apply; a path
// that the user named is hidden both at that path and at its path after the import.
func (s *Policies) Hides(ctx context.Context, rec *meta.Sandbox) (Covered, error) {
	if rec.Tier == workspace {
		return Covered{}, nil // see hidesNothing
	}
	root, err := s.rootBelow(ctx, rec)
	if err != nil {
		return Covered{}, err
	}
	key := rec.Policy + " " + root
	s.mu.Lock()
	c, known := s.hidden[key]
	s.mu.Unlock()
	if known {
		return c, nil
	}
	p, err := s.Of(ctx, rec)
	if err != nil {
		return Covered{}, err
	}
	if c.Hide, err = hiddenIn(p, root, s.config.Homes); err != nil {
		return Covered{}, err
	}
	if c.Decoys, err = decoysIn(p, root, s.config.Homes); err != nil {
		return Covered{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hidden) >= maxHidden {
		clear(s.hidden)
	}
	s.hidden[key] = c
	return c, nil
}

// Covered is what a policy hides inside, and where it has decoys. It is cached and shared, and must not be modified.
type Covered struct{ Hide, Decoys []string }

// rootBelow returns the host directory that the root of a sandbox was made from; "" if none. The record of a sandbox
// that was created before masks has none, but its base has.
func (s *Policies) rootBelow(ctx context.Context, rec *meta.Sandbox) (string, error) {
	if rec.Host {
		return "/", nil
	}
	if rec.Root != "" || rec.Base == "" {
		return rec.Root, nil
	}
	key, err := s.config.Records.BaseKey(ctx, rec.Base)
	if err != nil {
		return "", fault.Wrap(err, "read the base of sandbox %s", rec.Name)
	}
	if key == s.config.HostCopyKey {
		return "/", nil
	}
	return "", nil
}

func hiddenIn(p policy.Policy, root string, homes []string) ([]string, error) {
	builtIn, said := p.Hidden(homes...)
	var list []string
	if root == "/" {
		list = builtIn
	}
	for _, h := range said {
		if !path.IsAbs(h) {
			return nil, fault.New(fault.Invalid, "cannot hide %s: its directory is unknown", h).
				WithHint("use an absolute path")
		}
		if h == "/" {
			return nil, fault.New(fault.Invalid, "cannot hide the whole root").WithHint("name paths in it")
		}
		list = append(list, h)
		if root != "" && root != "/" && h != root && rootspec.Within(h, root) {
			list = append(list, strings.TrimPrefix(h, root))
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// hidesNothing refuses a policy that hides paths in tier workspace, where commands see the host.
func hidesNothing(p policy.Policy, tier string) error {
	if tier != workspace {
		return nil
	}
	for _, h := range p.Hide {
		if !h.At.BuiltIn() {
			return fault.New(fault.Unsupported, "tier workspace does not support hidden paths: %s, by %s", h.Value, h.At).
				WithHint("use --tier process, or remove it")
		}
	}
	return nil
}

// RootOf returns the host directory that the root of a base was made from; "" if none.
func RootOf(from wire.Source) string {
	switch from.Kind {
	case "", wire.SourceHost, wire.SourceHostCopy:
		return "/"
	case wire.SourceDir:
		return path.Clean(from.Path)
	}
	return ""
}

// decoysIn returns the paths inside at which a policy has decoys. A path in an imported directory stands for its path
// after the import.
func decoysIn(p policy.Policy, root string, homes []string) (list []string, err error) {
	builtIn, said := p.DecoyPaths(homes...)
	if root == "/" {
		list = builtIn
	}
	for _, h := range said {
		if !path.IsAbs(h) {
			return nil, fault.New(fault.Invalid, "cannot place a decoy at %s: its directory is unknown", h).
				WithHint("use an absolute path")
		}
		if root != "" && root != "/" && h != root && rootspec.Within(h, root) {
			h = strings.TrimPrefix(h, root)
		}
		list = append(list, h)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// placeDecoys refuses decoys at paths where nothing can be mounted, or next to a mount.
func placeDecoys(p policy.Policy, root string, homes []string, a rootspec.Access) error {
	list, err := decoysIn(p, root, homes)
	for _, at := range list {
		a.Decoys = append(a.Decoys, rootspec.Decoy{At: at})
	}
	if err != nil {
		return err
	}
	return a.Validate()
}
