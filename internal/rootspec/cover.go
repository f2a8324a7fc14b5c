package rootspec

import (
	"cmp"
	"slices"
)

// A Region is the part of a root at and below a path, without other regions below it. It decides whether init may
// mount one of its files there: see MayCover.
type Region struct {
	At string `json:"at"` // absolute
	// Open reports that the sandbox may change files in the region, so that none of them needs protection.
	Open  bool `json:"open,omitempty"`
	Decoy bool `json:"decoy,omitempty"` // never covered
}

// Regions returns the regions of a root that a restricts, the innermost of nested ones last.
func (a Access) Regions() []Region {
	var closed []string
	for _, p := range a.ReadOnly {
		closed = append(closed, p.At...)
	}
	all := []Region{{At: "/", Open: !a.Only}}
	for _, at := range []string{"/dev", "/proc", "/sys", SharedAt, ClientDir} {
		all = append(all, Region{At: at})
	}
	all = append(all, Region{At: "/run", Open: true})
	for _, p := range a.Writable {
		for _, at := range p.At {
			all = append(all, Region{At: at, Open: true})
		}
	}
	for _, m := range a.mounted() {
		all = append(all, Region{At: m.To, Open: m.Write})
	}
	for _, at := range closed {
		all = append(all, Region{At: at})
	}
	for _, d := range a.Decoys {
		all = append(all, Region{At: d.At, Decoy: true})
	}
	for i, r := range all { // everything below a read-only path is read-only
		all[i].Open = r.Open && !slices.ContainsFunc(closed, func(at string) bool { return Within(r.At, at) })
	}
	slices.SortStableFunc(all, func(x, y Region) int { return cmp.Compare(len(x.At), len(y.At)) })
	return all
}

// RegionOf returns the region of a clean absolute path. If no region contains it, the result is one in which nothing
// may be covered.
func RegionOf(all []Region, p string) Region {
	for _, r := range slices.Backward(all) {
		if Within(p, r.At) {
			return r
		}
	}
	return Region{Decoy: true}
}

// MayCover reports whether init may mount one of its files over file, to which name resolved. Links in the sandbox
// determine what name resolves to. So a file that the sandbox may not change is covered only if name itself, which
// init chose, is in the same region. A decoy is never covered, since its opening would then go unnoticed.
func MayCover(all []Region, name, file string) bool {
	r := RegionOf(all, file)
	return !r.Decoy && (r.Open || r == RegionOf(all, name))
}
