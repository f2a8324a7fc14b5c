package rootspec

import (
	"cmp"
	"slices"
)

// A Region is a part of a root, from a path down to where other regions begin: what a file
// of init's may be laid over depends on it. See MayCover.
type Region struct {
	At string `json:"at"` // absolute
	// Open says that the sandbox may change what is in the region, so that nothing
	// there has to be kept from it.
	Open  bool `json:"open,omitempty"`
	Decoy bool `json:"decoy,omitempty"` // nothing is ever laid over it
}

// Regions lists the regions of a root that a restricts, the innermost of nested ones last.
func (a Access) Regions() []Region {
	var closed []string
	for _, p := range a.ReadOnly {
		closed = append(closed, p.At...)
	}
	all := []Region{{At: "/", Open: !a.Only}}
	for _, at := range []string{"/dev", "/proc", "/sys", SharedAt} {
		all = append(all, Region{At: at})
	}
	all = append(all, Region{At: "/run", Open: true})
	for _, p := range a.Writable {
		for _, at := range p.At {
			all = append(all, Region{At: at, Open: true})
		}
	}
	for _, m := range a.Mounts {
		all = append(all, Region{At: m.To, Open: m.Write})
	}
	for _, at := range closed {
		all = append(all, Region{At: at})
	}
	for _, d := range a.Decoys {
		all = append(all, Region{At: d.At, Decoy: true})
	}
	for i, r := range all { // read-only is read-only with all that lies in it
		all[i].Open = r.Open && !slices.ContainsFunc(closed, func(at string) bool { return Within(r.At, at) })
	}
	slices.SortStableFunc(all, func(x, y Region) int { return cmp.Compare(len(x.At), len(y.At)) })
	return all
}

// RegionOf gives the region that a clean absolute path lies in. Where there are none it
// is one in which nothing may be covered.
func RegionOf(all []Region, p string) Region {
	for _, r := range slices.Backward(all) {
		if Within(p, r.At) {
			return r
		}
	}
	return Region{Decoy: true}
}

// MayCover reports whether a file of init's may be laid over file, which is where name led
// to. Links in the sandbox decide where that is. So what the sandbox may not change is
// covered only where name itself, which init chose, lies in the same region; and a decoy
// never is, since opening it would go unnoticed.
func MayCover(all []Region, name, file string) bool {
	r := RegionOf(all, file)
	return !r.Decoy && (r.Open || r == RegionOf(all, name))
}
