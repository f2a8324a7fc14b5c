package policy

// Confine says how tier workspace confines commands, which have the namespaces and the user of the host. Other tiers
// ignore it.
type Confine string

// The values of Confine.
const (
	ConfineAuto    Confine = "auto"    // with the walls that the host has
	ConfineRequire Confine = "require" // with all walls, or the sandbox does not start
	ConfineOff     Confine = "off"     // not at all
)

// rank orders values from the weakest to the strictest.
func (c Confine) rank() int {
	switch c {
	case ConfineOff:
		return 0
	case ConfineRequire:
		return 2
	}
	return 1
}

// stricterConfine reports whether x is stricter than y.
func stricterConfine(x, y Confine) bool { return x.rank() > y.rank() }

// lock merges the settings of Confine. A project's file cannot weaken what the owner's say, or what is built in.
func (m *merger) lock(said [3]Document) {
	p := &m.p
	for level, d := range said {
		switch c := d.Confine; {
		case c == nil:
		case Level(level) == Project && stricterConfine(p.Confine.Value, c.Value):
			m.note(c.At, "confine %s is weaker than %s", c.Value, p.Confine.Value)
		default:
			p.Confine = *c
		}
	}
}
