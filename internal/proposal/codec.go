package proposal

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Encode encodes a proposal, with a final newline. Invalid: it cannot be encoded.
func Encode(p *Proposal) ([]byte, error) {
	if why := p.bad(); why != "" {
		return nil, fault.New(fault.Invalid, "cannot encode the proposal: %s", why)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(p); err != nil {
		return nil, fault.Wrap(err, "write a proposal")
	}
	if n := int64(b.Len()); n > Limit(FileProposal) {
		return nil, fault.New(fault.Invalid, "the proposal is too large: %d bytes", n)
	}
	return b.Bytes(), nil
}

// Decode decodes the output of Encode, and nothing else: no unknown or duplicate fields, and no trailing data.
// Version: the proposal is from a newer Coppice. Invalid: it is not a valid proposal.
func Decode(b []byte) (*Proposal, error) {
	if int64(len(b)) > Limit(FileProposal) {
		return nil, notOne("it is too large")
	}
	var head struct{ Schema int }
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, notOne("it is not JSON")
	}
	if head.Schema > Schema {
		return nil, fault.New(fault.Version, "unknown proposal schema %d: the newest that this build supports is %d",
			head.Schema, Schema).
			WithHint("install a newer version of coppice")
	}
	p := new(Proposal)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		return nil, notOne("it has an invalid or unknown field")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, notOne("it has trailing data")
	}
	again, err := Encode(p)
	if err != nil {
		return nil, notOne(p.bad())
	}
	if !bytes.Equal(again, b) {
		return nil, notOne("it is not in canonical form")
	}
	return p, nil
}

func notOne(why string) error {
	return fault.New(fault.Invalid, "invalid proposal %s: %s", FileProposal, why).
		WithHint("it may have been modified; ask the author to propose again")
}

// bad returns what is wrong with a proposal, or "".
func (p *Proposal) bad() string {
	switch {
	case p.Schema != Schema:
		return "invalid schema"
	case timeline.ValidName(p.Name) != nil || p.Branch != "coppice/"+p.Name:
		return "its name and its branch do not match"
	case len(p.Changes) > MaxChanges || len(p.Marks) > MaxMarks || len(p.Skipped) > MaxSkipped ||
		len(p.Commands) > MaxCommands ||
		len(p.Refused) > MaxRefused || len(p.Snapshots) > MaxSnapshots || len(p.Tests) > MaxTests ||
		len(p.Enforced)+len(p.Lacking) > MaxEnforced:
		return "a list is too long"
	case p.Stat.Files < len(p.Changes) || p.Stat.Marks < len(p.Marks) || p.Stat.Skipped < len(p.Skipped) ||
		p.Stat.Snapshots < len(p.Snapshots):
		return "a list has more entries than its count"
	}
	if _, err := timeline.ParseSandboxID(p.Sandbox); err != nil {
		return "invalid sandbox id"
	}
	ids := []string{p.Snapshot}
	for _, s := range p.Snapshots {
		if ids = append(ids, s.ID); s.Parent != "" {
			ids = append(ids, s.Parent)
		}
	}
	for _, id := range ids {
		if _, err := timeline.ParseSnapshotID(id); err != nil {
			return "invalid snapshot id"
		}
	}
	for _, id := range []string{p.Base, p.Start, p.Tip, p.Work} {
		if !commit(id) || len(id) != len(p.Base) {
			return "invalid commit"
		}
	}
	for _, n := range p.counts() {
		if n < 0 || n >= 1<<53 {
			return "invalid number"
		}
	}
	for s := range p.texts {
		if len(s) > maxText || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return "invalid text"
		}
	}
	return ""
}

// commit reports whether s is a full object ID.
func commit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}

// counts returns the numbers that must not be negative.
func (p *Proposal) counts() []int64 {
	l := p.Ledger
	out := []int64{int64(p.Commits), int64(p.Stat.Added), int64(p.Stat.Deleted), l.Records, l.Commands, l.Failed,
		l.Programs, l.NetAllowed, l.NetRefused, l.FileRefused, l.BytesOut, int64(l.Risk)}
	for _, c := range p.Changes {
		out = append(out, int64(c.Added), int64(c.Deleted))
	}
	for _, c := range p.Commands {
		out = append(out, c.Record, c.MS, c.Programs)
	}
	for _, r := range p.Refused {
		out = append(out, r.Count)
	}
	for _, t := range p.Tests {
		out = append(out, t.MS)
	}
	return out
}

// texts yields each text of the proposal.
func (p *Proposal) texts(yield func(string) bool) {
	all := []string{p.Title, p.From, p.Tier, p.Policy, p.Ledger.Origin, p.Ledger.Key}
	all = append(append(all, p.Enforced...), p.Lacking...)
	for _, c := range p.Changes {
		all = append(all, c.Status, c.Path, c.OldPath)
	}
	for _, m := range p.Marks {
		all = append(all, m.Path, m.Kind, m.Why)
	}
	for _, s := range p.Skipped {
		all = append(all, s.Path, s.Why)
	}
	for _, t := range p.Tests {
		all = append(all, t.Cmd, t.Output)
	}
	for _, c := range p.Commands {
		all = append(append(all, c.Dir, c.Reason), c.Args...)
	}
	for _, r := range p.Refused {
		all = append(all, r.Kind, r.What, r.Why)
	}
	for _, s := range p.Snapshots {
		all = append(append(all, s.Cause, s.Message), s.Layers...)
	}
	for _, s := range all {
		if !yield(s) {
			return
		}
	}
}
