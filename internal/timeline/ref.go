package timeline

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// A reference, as users type it:
//
//	ref    = start { "~" [ number ] | "^" }
//	start  = "HEAD" | "@" | tag | id | prefix | "@{" moment "}"
//	moment = duration (5m, 1h30m, 2d, 1w) | time (2026-01-02T15:04:05Z, and shorter)
//
// "~N" is the N-th ancestor, "~" and "^" are the first. A tag takes precedence over a prefix, a complete id over
// everything.

// maxCandidates is how many snapshots an error lists.
const maxCandidates = 8

// refHint is the hint of every error about the form of a reference.
const refHint = "a reference is an id, a prefix of one, a tag, HEAD, HEAD~2 or " +
	"@{5m}; list them: coppice log NAME"

// Ref is a parsed reference: the starting point, and how many ancestors up.
type Ref struct {
	Name string        // tag, id or prefix; "" for HEAD and moments
	Ago  time.Duration // with IsAgo
	At   time.Time     // with IsTime
	Up   int           // how many ancestors up from there

	IsAgo, IsTime bool
}

// ParseRef checks the form of a reference without looking anything up. Times without a zone are in loc. The error is
// Invalid.
func ParseRef(s string, loc *time.Location) (Ref, error) {
	var r Ref
	if s == "" {
		return r, fault.New(fault.Invalid, "empty reference").WithHint(refHint)
	}
	var rest string
	if body, ok := strings.CutPrefix(s, "@{"); ok {
		moment, after, closed := strings.Cut(body, "}")
		if !closed {
			return r, fault.New(fault.Invalid, "invalid reference %s: missing closing brace", quote(s)).WithHint(refHint)
		}
		if err := r.parseMoment(moment, loc); err != nil {
			return Ref{}, err
		}
		rest = after
	} else {
		end := strings.IndexAny(s, "~^")
		if end < 0 {
			end = len(s)
		}
		start := s[:end]
		rest = s[end:]
		if start != "HEAD" && start != "@" {
			if validName("reference", start) != nil && !isHex(start, snapshotDigits) {
				return Ref{}, fault.New(fault.Invalid, "invalid reference %s", quote(s)).WithHint(refHint)
			}
			r.Name = start
		}
	}
	for rest != "" {
		step := rest[0]
		rest = rest[1:]
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		n := 1
		switch {
		case step != '~' && step != '^', step == '^' && digits != "":
			return Ref{}, fault.New(fault.Invalid, "invalid reference %s", quote(s)).WithHint(refHint)
		case digits != "":
			rest = rest[len(digits):]
			var err error
			if n, err = strconv.Atoi(digits); err != nil {
				n = maxUp
			}
		}
		r.Up = min(maxUp, r.Up+n)
	}
	return r, nil
}

// maxUp is more than the number of ancestors of any snapshot; larger numbers mean the same.
const maxUp = 1 << 30

// String returns a reference that ParseRef parses as r.
func (r Ref) String() string {
	s := r.Name
	switch {
	case r.IsAgo:
		s = "@{" + r.Ago.String() + "}"
	case r.IsTime:
		s = "@{" + r.At.Format(time.RFC3339Nano) + "}"
	case s == "":
		s = "HEAD"
	}
	if r.Up > 0 {
		s += "~" + strconv.Itoa(r.Up)
	}
	return s
}

// timeForms are the accepted forms of a time, the longest first.
var timeForms = [...]string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999",
	"2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02",
}

func (r *Ref) parseMoment(s string, loc *time.Location) error {
	if d, ok := parseAgo(s); ok {
		r.IsAgo, r.Ago = true, d
		return nil
	}
	for _, form := range timeForms {
		if t, err := time.ParseInLocation(form, s, loc); err == nil {
			r.IsTime, r.At = true, t
			return nil
		}
	}
	return fault.New(fault.Invalid, "invalid time %s: must be a duration or a time", quote(s)).
		WithHint("use @{5m}, @{1h30m}, @{2d} or @{2026-01-02T15:04:05Z}")
}

// parseAgo reads a duration in the form of package time, with weeks and days before the rest: 1w2d3h. It refuses
// signs, and values that do not fit.
func parseAgo(s string) (time.Duration, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	var total time.Duration
	for _, unit := range []struct {
		name string
		d    time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, after, ok := strings.Cut(s, unit.name)
		if !ok || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n > int64((1<<63-1-total)/unit.d) {
			return 0, false
		}
		total += time.Duration(n) * unit.d
		s = after
	}
	if s == "" {
		return total, true
	}
	if strings.ContainsAny(s, "+-") {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > 1<<63-1-total {
		return 0, false
	}
	return total + d, true
}

// Resolve finds the snapshot that a reference names. Its errors are Invalid (the form), Ambiguous and NotFound; the
// latter two list candidates. "@{5m}" is relative to now, and times without a zone are in the zone of now.
func (h *History) Resolve(ref string, now time.Time) (SnapshotID, error) {
	r, err := ParseRef(ref, now.Location())
	if err != nil {
		return "", err
	}
	id, err := h.start(r, ref, now)
	if err != nil {
		return "", err
	}
	if r.Up == 0 {
		return id, nil
	}
	up := h.Ancestors(id)
	if r.Up > len(up) {
		return "", fault.New(fault.NotFound, "snapshot %s not found: %s has "+
			"%s", quote(ref), h.describe(id), ancestors(len(up))).
			WithHint("see the history: coppice log NAME")
	}
	return up[r.Up-1], nil
}

// start resolves a reference without its part for ancestors.
func (h *History) start(r Ref, ref string, now time.Time) (SnapshotID, error) {
	switch {
	case r.IsAgo:
		return h.moment(now.Add(-r.Ago), ref, now)
	case r.IsTime:
		return h.moment(r.At, ref, now)
	case r.Name == "":
		if _, ok := h.Snapshots[h.Head]; !ok {
			return "", fault.New(fault.Corrupt, "HEAD is snapshot %q, which is missing", string(h.Head)).
				WithHint("coppice system verify")
		}
		return h.Head, nil
	}
	if s, ok := h.Snapshots[SnapshotID(r.Name)]; ok {
		return s.ID, nil
	}
	if id, ok := h.Tags[r.Name]; ok {
		return id, nil
	}
	var fits []SnapshotID
	if allHex(r.Name) {
		for id := range h.Snapshots {
			if strings.HasPrefix(string(id), r.Name) {
				fits = append(fits, id)
			}
		}
	}
	h.sortByTime(fits)
	switch {
	case len(fits) > 0 && len(r.Name) < MinPrefix:
		return "", fault.New(fault.Ambiguous, "id %s is too short: it matches %s", quote(r.Name), h.list(fits)).
			WithHint("use at least %d digits, for example: %s", MinPrefix, h.Short(fits[len(fits)-1]))
	case len(fits) > 1:
		return "", fault.New(fault.Ambiguous, "id %s is ambiguous: it matches %s", quote(r.Name), h.list(fits)).
			WithHint("use more digits, for example: %s", h.Short(fits[len(fits)-1]))
	case len(fits) == 1:
		return fits[0], nil
	}
	return "", h.unknown(r.Name)
}

// moment finds the snapshot that HEAD was at time t.
func (h *History) moment(t time.Time, ref string, now time.Time) (SnapshotID, error) {
	if t.After(now) {
		return "", fault.New(fault.Invalid, "invalid reference %s: it is in the "+
			"future", quote(ref)).WithHint("use HEAD for the newest snapshot")
	}
	id, ok := h.At(t)
	if ok {
		return id, nil
	}
	first, ok := h.first()
	if !ok {
		return "", fault.New(fault.NotFound, "snapshot %s not found: the history is empty", quote(ref))
	}
	return "", fault.New(fault.NotFound, "snapshot %s not found: the history begins at %s with %s", quote(ref),
		h.Snapshots[first].Created.In(now.Location()).Format(time.RFC3339), h.describe(first)).
		WithHint("see the history: coppice log NAME")
}

// first returns the oldest snapshot that the sandbox made itself.
func (h *History) first() (SnapshotID, bool) {
	var own []SnapshotID
	for id, s := range h.Snapshots {
		if h.Sandbox == "" || s.Sandbox == h.Sandbox {
			own = append(own, id)
		}
	}
	if len(own) == 0 {
		return "", false
	}
	h.sortByTime(own)
	return own[0], true
}

// unknown returns the error for an unknown name, with the most similar tags and ids.
func (h *History) unknown(name string) error {
	e := fault.New(fault.NotFound, "snapshot or tag %s not found", quote(name)).
		WithHint("list them: coppice log NAME")
	tags := make([]string, 0, len(h.Tags))
	for tag := range h.Tags {
		tags = append(tags, tag)
	}
	if near := fault.Nearest(name, tags); near != "" {
		e.Message += fmt.Sprintf("; did you mean the tag %s?", quote(near))
		return e
	}
	if !allHex(name) || len(name) < MinPrefix {
		return e
	}
	var near []SnapshotID
	for id := range h.Snapshots {
		if commonPrefix(string(id), name) >= MinPrefix-1 {
			near = append(near, id)
		}
	}
	if len(near) > 0 {
		h.sortByTime(near)
		e.Message += "; the nearest are " + h.list(near)
	}
	return e
}

// list describes at most maxCandidates snapshots, the newest ones.
func (h *History) list(ids []SnapshotID) string {
	var parts []string
	for i := len(ids) - 1; i >= 0 && len(parts) < maxCandidates; i-- {
		parts = append(parts, h.describe(ids[i]))
	}
	s := strings.Join(parts, ", ")
	if more := len(ids) - len(parts); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// describe returns a snapshot's id with the beginning of its message.
func (h *History) describe(id SnapshotID) string {
	if m := brief(h.Snapshots[id].Message); m != "" {
		return string(id) + " (" + m + ")"
	}
	return string(id)
}

// brief returns the first line of a message without invisible characters, truncated to 40 characters.
func brief(message string) string {
	const most = 40
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	line = strings.Map(func(r rune) rune {
		if !visible.Rune(r) {
			return '?'
		}
		return r
	}, line)
	if utf8.RuneCountInString(line) <= most {
		return line
	}
	return string([]rune(line)[:most-3]) + "..."
}

// quote quotes what a user typed, truncated so that an error stays readable.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

func ancestors(n int) string {
	if n == 0 {
		return "no ancestor"
	}
	return visible.Count(n, "ancestor")
}
