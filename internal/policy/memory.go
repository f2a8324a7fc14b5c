package policy

// MemoryFork says whether a sandbox may be forked with what its processes have in memory.
// Some of it cannot be made another's from outside: a generator of random numbers that a
// program has seeded by itself gives the same in each copy.
type MemoryFork string

// What may be said.
const (
	MemoryAllow MemoryFork = "allow"
	MemoryDeny  MemoryFork = "deny"
)

func memoryShape() shape[Document] {
	return object(nothing[Document],
		key("fork", "Whether forks with memory are possible: allow or deny. The seeds of random generators in programs "+
			"are the same in each such fork.", said(choice(MemoryAllow, MemoryDeny)), func(d *Document,
			v Said[MemoryFork]) {
			d.MemoryFork = &v
		}),
	)
}

// memory merges what is said of memory: a project cannot allow what its owner denies.
func (m *merger) memory(said [3]Document) {
	p := &m.p
	for level, d := range said {
		switch f := d.MemoryFork; {
		case f == nil:
		case Level(level) == Project && f.Value == MemoryAllow && p.MemoryFork.Value == MemoryDeny:
			m.note(f.At, "cannot allow forks with memory: denied by %s", p.MemoryFork.At)
		default:
			p.MemoryFork = *f
		}
	}
}
