package policy

import (
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/redact"
)

// Programs says which started programs of a sandbox are recorded.
type Programs string

// The values of Programs.
const (
	ProgramsAll     Programs = "all"     // summaries, and the complete list
	ProgramsSummary Programs = "summary" // summaries alone
	ProgramsNone    Programs = "none"    // nothing
)

func (p Programs) rank() int {
	return slices.Index([]Programs{ProgramsNone, ProgramsSummary, ProgramsAll}, p)
}

// FileDenials says which refused accesses to files are recorded.
type FileDenials string

// The values of FileDenials.
const (
	FileDenialsAuto FileDenials = "auto" // where that is cheap: in tier gvisor
	FileDenialsNone FileDenials = "none"
)

func (d FileDenials) rank() int {
	return slices.Index([]FileDenials{FileDenialsNone, FileDenialsAuto}, d)
}

const (
	// DefaultOutput is the default size of the captured output of each stream of a command, in bytes: the first half
	// shows what was run, and the last half why it failed.
	DefaultOutput = 256 << 10
	// MaxOutput is the maximum size of the captured output: the sandbox's keeper holds it in memory.
	MaxOutput = 1 << 20
)

// Evidence is what is recorded about a sandbox.
type Evidence struct {
	Output   Said[int64]    // of each stream of a command's output, in bytes; 0 is none
	Redact   []Said[string] // expressions to redact, besides known secrets; sorted
	Entropy  Said[bool]     // redact text that looks random
	Programs Said[Programs]
	Denials  Said[FileDenials]
}

// EvidenceSaid is the evidence section of a file.
type EvidenceSaid struct {
	Output   *Said[int64]
	Redact   []Said[string]
	Entropy  *Said[bool]
	Programs *Said[Programs]
	Denials  *Said[FileDenials]
}

// DefaultEvidence returns the evidence that is recorded by default.
func DefaultEvidence() Evidence {
	at := builtInOrigin("")
	return Evidence{Output: Said[int64]{DefaultOutput, at}, Entropy: Said[bool]{false, at},
		Programs: Said[Programs]{ProgramsAll, at}, Denials: Said[FileDenials]{FileDenialsAuto, at}}
}

// document returns v as the evidence section of a file, or nil. Defaults are omitted: policies older than these keys
// keep their digests.
func (v Evidence) document() *EvidenceSaid {
	out := &EvidenceSaid{Redact: v.Redact}
	if v.Output.Value != DefaultOutput {
		out.Output = &v.Output
	}
	if v.Entropy.Value {
		out.Entropy = &v.Entropy
	}
	if v.Programs.Value != ProgramsAll {
		out.Programs = &v.Programs
	}
	if v.Denials.Value != FileDenialsAuto {
		out.Denials = &v.Denials
	}
	if out.Output == nil && out.Redact == nil && out.Entropy == nil && out.Programs == nil && out.Denials == nil {
		return nil
	}
	return out
}

// file returns the value of the key evidence.
func (v EvidenceSaid) file() any {
	out := map[string]any{}
	if v.Output != nil {
		out["output"] = outputText(v.Output.Value)
	}
	putList(out, "redact", v.Redact)
	put(out, "entropy", v.Entropy)
	put(out, "programs", v.Programs)
	put(out, "denials", v.Denials)
	return out
}

func outputText(n int64) string {
	if n == 0 {
		return "none"
	}
	return FormatBytes(n)
}

// joinEvidence merges the evidence of two documents of one level. The setting that records more, or redacts more,
// applies.
func joinEvidence(a, b *EvidenceSaid) *EvidenceSaid {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &EvidenceSaid{
		Output:   pick(a.Output, b.Output, func(x, y int64) bool { return x > y }),
		Redact:   add(a.Redact, b.Redact),
		Entropy:  pick(a.Entropy, b.Entropy, func(x, _ bool) bool { return x }),
		Programs: pick(a.Programs, b.Programs, func(x, y Programs) bool { return x.rank() > y.rank() }),
		Denials:  pick(a.Denials, b.Denials, func(x, y FileDenials) bool { return x.rank() > y.rank() }),
	}
}

// evidence merges the evidence sections. A project's file can neither record less nor redact less than its owner says.
func (m *merger) evidence(said [3]Document) {
	v := DefaultEvidence()
	for level, d := range said {
		if d.Evidence == nil {
			continue
		}
		project := Level(level) == Project
		if o := d.Evidence.Output; o != nil {
			if project && o.Value < v.Output.Value {
				m.note(o.At, "cannot keep less output than %s, which takes precedence", v.Output.At)
			} else {
				v.Output = *o
			}
		}
		if o := d.Evidence.Entropy; o != nil {
			if project && !o.Value && v.Entropy.Value {
				m.note(o.At, "cannot stop redacting tokens that look random: required by %s", v.Entropy.At)
			} else {
				v.Entropy = *o
			}
		}
		if o := d.Evidence.Programs; o != nil {
			if project && o.Value.rank() < v.Programs.Value.rank() {
				m.note(o.At, "cannot record less of programs than %s, which takes precedence", v.Programs.At)
			} else {
				v.Programs = *o
			}
		}
		if o := d.Evidence.Denials; o != nil {
			if project && o.Value.rank() < v.Denials.Value.rank() {
				m.note(o.At, "cannot record fewer refused files than %s, which takes precedence", v.Denials.At)
			} else {
				v.Denials = *o
			}
		}
		v.Redact = add(v.Redact, d.Evidence.Redact)
	}
	if v.Redact = unique(v.Redact, func(s string) string { return s }); len(v.Redact) > redact.MaxPatterns {
		at := v.Redact[redact.MaxPatterns].At
		m.wrong(at, "combine some of them with |", "too many expressions to redact: %d; the limit is "+
			"%d", len(v.Redact), redact.MaxPatterns)
	}
	if len(v.Redact) == 0 {
		v.Redact = nil // as without any setting
	}
	m.p.Evidence = v
}

// unplacedEvidence returns the evidence of a canonical text.
func unplacedEvidence(said *EvidenceSaid, at Origin) Evidence {
	v := DefaultEvidence()
	if said == nil {
		return v
	}
	if said.Output != nil {
		v.Output = Said[int64]{said.Output.Value, at}
	}
	if said.Entropy != nil {
		v.Entropy = Said[bool]{said.Entropy.Value, at}
	}
	if said.Programs != nil {
		v.Programs = Said[Programs]{said.Programs.Value, at}
	}
	if said.Denials != nil {
		v.Denials = Said[FileDenials]{said.Denials.Value, at}
	}
	v.Redact = unplaced(said.Redact)
	return v
}

// evidenceShape is the shape of the evidence section.
func evidenceShape() shape[EvidenceSaid] {
	return object(nothing[EvidenceSaid],
		key("output", "Maximum size of the captured output per stream of a command, such as 256KiB, or "+
			"none.", said(outputs()),
			func(v *EvidenceSaid, n Said[int64]) { v.Output = &n }),
		key("redact", "Regular expressions (RE2) to redact within lines: the first group, or the whole match.",
			list(said(text("a regular expression", expression)), 0), func(v *EvidenceSaid, l []Said[string]) { v.Redact = l }),
		key("entropy", "Also redact tokens that look random, including commit ids.", said(truth()),
			func(v *EvidenceSaid, b Said[bool]) { v.Entropy = &b }),
		key("programs",
			"Which started programs are recorded: all, summary (no complete list), or none, which tier supervised "+
				"refuses.", said(choice(ProgramsAll, ProgramsSummary, ProgramsNone)), func(v *EvidenceSaid,
				p Said[Programs]) {
				v.Programs = &p
			}),
		key("denials", "Which refused accesses to files are recorded: auto (in tier gvisor, where that is cheap), or none.",
			said(choice(FileDenialsAuto, FileDenialsNone)), func(v *EvidenceSaid, d Said[FileDenials]) { v.Denials = &d }),
	)
}

func outputs() shape[int64] {
	s := parsed("a size such as 256KiB, or none", schema{"type": []string{"string", "integer"}},
		func(s string) (int64, error) {
			if s == "none" {
				return 0, nil
			}
			n, err := ParseBytes(s)
			if err == nil && (n > MaxOutput || len(s) > 1 && s[0] == '0' && s[1] != '.') {
				err = fault.New(fault.Invalid, "invalid output size %q", s).
					WithHint("use none, or a size of at most %s", FormatBytes(MaxOutput))
			}
			return n, err
		}, "!!str", "!!int")
	return matching(s, `^(none|[0-9]+(\.[0-9]+)?(TiB|GiB|MiB|KiB|TB|GB|MB|kB|T|G|M|K|B)?)$`)
}

// expression checks a regular expression to redact.
func expression(s string) (string, error) { return s, redact.Check(s) }

// explain describes v in lines, without defaults.
func (v Evidence) explain(say func(key, value string, at Origin)) {
	if !v.Output.At.BuiltIn() {
		say("evidence.output", outputText(v.Output.Value), v.Output.At)
	}
	for _, r := range v.Redact {
		say("evidence.redact", strconv.Quote(r.Value), r.At)
	}
	if !v.Entropy.At.BuiltIn() {
		say("evidence.entropy", strconv.FormatBool(v.Entropy.Value), v.Entropy.At)
	}
	if !v.Programs.At.BuiltIn() {
		say("evidence.programs", string(v.Programs.Value), v.Programs.At)
	}
	if !v.Denials.At.BuiltIn() {
		say("evidence.denials", string(v.Denials.Value), v.Denials.At)
	}
}
