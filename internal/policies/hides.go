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

// maxHidden is how many answers of Hides are remembered.
const maxHidden = 1 << 15

// Hides lists the paths inside that are hidden in a sandbox, and those that have decoys: absolute
// ones, whose last part may be *. A copy of the host is hidden from as the host is. Of another
// base, what is built in says nothing; what somebody named is hidden there at its own path, and
// where that path of the host has come to lie.
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

// Covered is what a policy hides inside, and where it has decoys. It belongs to everybody and is
// not to be changed.
type Covered struct{ Hide, Decoys []string }

// rootBelow says which directory of the host the root of a sandbox has been; "" is none.
// The record of a sandbox that was made before masks does not; its base does.
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

// hidesNothing refuses what cannot be hidden: in tier workspace commands see the host.
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

// RootOf says which directory of the host the root of a base has been.
func RootOf(from wire.Source) string {
	switch from.Kind {
	case "", wire.SourceHost, wire.SourceHostCopy:
		return "/"
	case wire.SourceDir:
		return path.Clean(from.Path)
	}
	return ""
}

// decoysIn lists the paths inside at which a policy has decoys.
// What lies in a directory that was imported is meant where it has come to lie.
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

// placeDecoys refuses decoys where nothing can be mounted, or besides what is.
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
