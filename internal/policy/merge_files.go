package policy

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// files merges the files sections.
func (m *merger) files(said [3]Document) {
	p := &m.p
	shown := slices.Concat(said[User].Show, said[Flags].Show)
	decoys := said[User].Decoys
	for _, d := range []*Said[bool]{said[Project].Decoys, said[Flags].Decoys} {
		switch {
		case d == nil:
		case decoys != nil && decoys.Value && !d.Value && d == said[Project].Decoys:
			m.note(d.At, "cannot disable decoys: required by %s", decoys.At)
		default:
			decoys = d
		}
	}
	for level, d := range said {
		switch t := d.OnTouch; {
		case t == nil:
		case Level(level) == Project && t.Value == TouchRecord && p.OnTouch.Value == TouchStop:
			m.note(t.At, "cannot keep the sandbox running after a decoy is touched: stop is required by %s", p.OnTouch.At)
		default:
			p.OnTouch = *t
		}
	}
	builtIn := []string{}
	for _, g := range HiddenPaths() {
		for _, h := range g.Paths {
			builtIn = append(builtIn, h.String())
			if slices.ContainsFunc(shown, func(s Said[Path]) bool { return s.Value == h }) {
				continue
			}
			p.Hide = append(p.Hide, Said[Path]{h, builtInOrigin(g.About)})
			for _, d := range g.Decoys {
				if decoys != nil && decoys.Value && d.beneath(h) {
					p.Decoys = append(p.Decoys, Said[Path]{d, builtInOrigin(g.About)})
				}
			}
		}
	}
	for _, s := range shown {
		if !slices.Contains(builtIn, s.Value.String()) {
			m.wrong(s.At, m.showHint(s.Value, builtIn), "%s is not a built-in hidden path", s.Value)
		}
	}
	for _, d := range said {
		p.Hide = slices.Concat(p.Hide, d.Hide, d.DecoyAt)
		p.ReadOnly = append(p.ReadOnly, d.ReadOnly...)
		p.Decoys = append(p.Decoys, d.DecoyAt...)
		p.Mounts = append(p.Mounts, d.Mounts...)
	}
	p.Writable = said[User].Writable
	if mine := said[Project].Writable; mine != nil {
		if p.Writable != nil {
			mine = m.narrow(p.Writable, mine)
		}
		p.Writable = mine
	}
	if said[Flags].Writable != nil {
		p.Writable = said[Flags].Writable
	}
	if p.Writable != nil {
		kept := []Said[Path]{}
		for _, w := range p.Writable {
			if r := m.covering(p.ReadOnly, w.Value); r != nil {
				m.note(w.At, "cannot make %s writable: read-only by %s", w.Value, r.At)
				continue
			}
			kept = append(kept, w)
		}
		p.Writable = unique(kept, Path.String)
	}
	m.mounts()
	p.Hide, p.ReadOnly, p.Decoys = unique(p.Hide, Path.String), unique(p.ReadOnly, Path.String),
		unique(p.Decoys, Path.String)
}

// showHint returns the hint for an unknown path to show.
func (m *merger) showHint(p Path, builtIn []string) string {
	for _, h := range builtIn {
		if p.beneath(Path{h}) {
			return h + " is hidden as a whole and can only be shown as a whole"
		}
	}
	if near := fault.Nearest(p.String(), builtIn); near != "" {
		return "did you mean " + near + "?"
	}
	return "list hidden paths: coppice policy explain"
}

// narrow returns the paths that both the owner's and the project's list cover.
func (m *merger) narrow(owner, project []Said[Path]) []Said[Path] {
	both := []Said[Path]{}
	for _, s := range project {
		switch {
		case m.covering(owner, s.Value) != nil:
			both = append(both, s)
		default:
			m.note(s.At, "cannot make %s writable: not writable in the owner's file", s.Value)
		}
	}
	for _, o := range owner {
		if m.covering(project, o.Value) != nil {
			both = append(both, o)
		}
	}
	return both
}

// beneath reports whether p is o or below it.
func (m *merger) beneath(p, o Path) bool { return p.in(m.home).beneath(o.in(m.home)) }

// covering returns the first path in list that contains p, or nil.
func (m *merger) covering(list []Said[Path], p Path) *Said[Path] {
	for i := range list {
		if m.beneath(p, list[i].Value) {
			return &list[i]
		}
	}
	return nil
}

// mounts checks the mounts against each other and against the hidden paths: no path that is hidden at its own place may
// be shown at another.
func (m *merger) mounts() {
	p := &m.p
	p.Mounts = unique(p.Mounts,
		func(v Mount) string { return v.To.String() + "\x00" + v.From.String() + "\x00" + v.mode() })
	hidden := slices.Clone(p.Hide)
	for i := range p.Mounts {
		s := &p.Mounts[i]
		from, to := s.Value.From, s.Value.To
		if i > 0 && p.Mounts[i-1].Value.To == to {
			m.wrong(s.At, "remove one of them", "%s is already mounted at %s by %s", to, p.Mounts[i-1].Value.From,
				p.Mounts[i-1].At)
		}
		if strings.HasSuffix(from.text, "/*") {
			m.wrong(s.At, "name the directory", "cannot mount %s: it is not a single path", from)
		}
		if h := m.covering(hidden, from); h != nil {
			hint := "remove it from hide"
			if strings.HasPrefix(h.At.Source, "built-in") {
				hint = "in your own file: files: {show: [" + h.Value.String() + "]}"
			}
			m.wrong(s.At, hint, "cannot mount %s: hidden by %s", from, h.At)
		}
		for _, h := range hidden {
			if hid, root := h.Value.in(m.home), from.in(m.home); hid != root && hid.beneath(root) {
				p.Hide = append(p.Hide,
					Said[Path]{Path{to.text + "/" + strings.TrimPrefix(strings.TrimPrefix(hid.text, root.text), "/")}, h.At})
			}
		}
		if s.Value.Write {
			for _, at := range []Path{from, to} {
				if r := m.covering(p.ReadOnly, at); r != nil && s.Value.Write {
					m.note(s.At, "cannot make %s writable: read-only by %s", at, r.At)
					s.Value.Write = false
				}
			}
		}
	}
}
