//go:build linux

package policies

import (
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// maxIgnored is the maximum number of ignored paths of a sandbox: each is a mount.
const maxIgnored = 64

// Ignored returns the paths inside that a policy leaves out of the history of a sandbox with rec's root and homes, for
// its record: absolute, sorted, none within another one. ~ is the first home. A path in an imported directory stands
// for its path after the import.
func (s *Policies) Ignored(p policy.Policy, rec *meta.Sandbox) ([]string, error) {
	all, err := ignoredIn(p, rec.Root, s.config.Homes)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	if rec.Tier == workspace {
		return nil, fault.New(fault.Unsupported, "tier workspace does not support ignored paths: it has no mounts").
			WithHint("use --tier process, or remove history.ignore and --ignore")
	}
	if len(all) > maxIgnored {
		return nil, fault.New(fault.Invalid, "too many ignored paths: %d; the limit is %d", len(all), maxIgnored).
			WithHint("ignore a directory that contains several of them")
	}
	hidden, err := hiddenIn(p, rec.Root, s.config.Homes)
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		for _, r := range rootspec.Reserved {
			if rootspec.Within(at, r) {
				return nil, fault.New(fault.Invalid, "cannot ignore %s: %s has no history anyway", at, r).
					WithHint("remove it from history.ignore and --ignore")
			}
		}
		for _, h := range hidden {
			if rootspec.Within(at, strings.TrimSuffix(h, "/*")) {
				return nil, fault.New(fault.Invalid, "cannot ignore %s: %s is hidden", at, h).
					WithHint("remove one of them; see: coppice policy explain")
			}
		}
	}
	return all, nil
}

// ignoredIn is Ignored without the checks against other settings.
func ignoredIn(p policy.Policy, root string, homes []string) (all []string, err error) {
	for _, s := range p.Ignore {
		at := s.Value.Within(homes...)
		if len(at) == 0 || !path.IsAbs(at[0]) {
			return nil, fault.New(fault.Invalid, "cannot ignore %s: its directory is unknown", s.Value).
				WithHint("use an absolute path")
		}
		one := at[0]
		if root != "" && root != "/" && one != root && rootspec.Within(one, root) {
			one = strings.TrimPrefix(one, root)
		}
		all = append(all, one)
	}
	slices.Sort(all)
	return rootspec.Outermost(slices.Compact(all)), nil
}

// ignoring returns the ignored paths of a record as mounts, without their directories on the host.
func ignoring(rec *meta.Sandbox) (out []rootspec.HostMount) {
	for _, at := range rec.Ignored {
		out = append(out, rootspec.HostMount{To: at, Write: true})
	}
	return out
}
