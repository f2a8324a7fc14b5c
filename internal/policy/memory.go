package policy

// MemoryFork says whether a sandbox may be forked with the memory of its processes. Some of that state cannot be
// changed from outside: a random number generator that a program has seeded itself returns the same numbers in each
// copy.
type MemoryFork string

// The values of MemoryFork.
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

// memory merges the settings of MemoryFork. A project's file cannot allow what the owner denies.
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
