package timeline

import (
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

var epoch = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

// sample makes a history: "1<-2<-3 2<-4" with ids of twelve equal digits and one minute between snapshots.
func sample() *History {
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Tags: map[string]SnapshotID{}, Sandbox: "0000000000aa"}
	add := func(id, parent SnapshotID, minute int, message string) {
		h.Snapshots[id] = Snapshot{ID: id, Parent: parent, Sandbox: "0000000000aa",
			Created: epoch.Add(time.Duration(minute) * time.Minute), Message: message}
		h.Head = id
	}
	add("abcd00000001", "", 0, "base")
	add("abcd00000002", "abcd00000001", 1, "apt-get install -y nginx postgresql openssh-server")
	add("ef0000000003", "abcd00000002", 2, "rm -rf /usr\nsecond line")
	add("ef0000000004", "abcd00000002", 4, "echo ü")
	h.Moves = []Move{{At: epoch.Add(3 * time.Minute), To: "abcd00000002"}}
	h.Tags["good"] = "abcd00000002"
	h.Tags["ef00"] = "abcd00000001"
	return h
}

func TestResolve(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	for ref, want := range map[string]SnapshotID{
		"HEAD": "ef0000000004", "@": "ef0000000004", "HEAD~": "abcd00000002", "HEAD^": "abcd00000002",
		"HEAD~2": "abcd00000001",
		"HEAD~~": "abcd00000001", "HEAD^^": "abcd00000001", "HEAD~1^": "abcd00000001", "HEAD~0": "ef0000000004",
		"@~":   "abcd00000002",
		"good": "abcd00000002", "good~1": "abcd00000001", "ef00": "abcd00000001", "ef0000000003": "ef0000000003",
		"ef0000000003~": "abcd00000002", "abcd00000002^": "abcd00000001",
		"@{10m}": "abcd00000001", "@{9m1s}": "abcd00000001", "@{9m}": "abcd00000002", "@{8m}": "ef0000000003",
		"@{7m}": "abcd00000002", "@{6m1s}": "abcd00000002", "@{6m}": "ef0000000004", "@{0s}": "ef0000000004",
		"@{6m}~2":                 "abcd00000001",
		"@{2026-01-02T15:02:30Z}": "ef0000000003", "@{2026-01-02T15:02:30}": "ef0000000003",
		"@{2026-01-02 15:02:30}": "ef0000000003",
		"@{2026-01-02 15:02}":    "ef0000000003", "@{2026-01-02T16:02:30+01:00}": "ef0000000003",
		"@{2026-01-02T15:02:59.999999999Z}": "ef0000000003",
	} {
		if got, err := sample().Resolve(ref, now); got != want || err != nil {
			t.Errorf("%s = %q, %v; want %q", ref, got, err, want)
		}
	}
}

func TestResolve_Errors(t *testing.T) {
	t.Parallel()
	now := epoch.Add(10 * time.Minute)
	for _, c := range []struct {
		ref  string
		kind fault.Kind
		says string
	}{
		{"", fault.Invalid, "empty"},
		{"HEAD~3", fault.NotFound, "2 ancestors"},
		{"abcd00000001~", fault.NotFound, "no ancestor"},
		{"HEAD~99999999999999999999", fault.NotFound, "2 ancestors"},
		{"HEAD~1073741824~1073741824~1073741824", fault.NotFound, "2 ancestors"},
		{"abcd", fault.Ambiguous, "abcd00000002 (apt-get install -y nginx postgresql o...), abcd00000001 (base)"},
		{"abc", fault.Ambiguous, "too short"},
		{"ef0", fault.Ambiguous, "ef0000000004 (echo ü), ef0000000003 (rm -rf /usr)"},
		{"abcd00000009", fault.NotFound, "nearest are abcd00000002"},
		{"goood", fault.NotFound, `the tag "good"`},
		{"goo", fault.NotFound, `the tag "good"`},
		{"nothing", fault.NotFound, `"nothing"`},
		{"head", fault.NotFound, `"head"`},
		{"@{11m}", fault.NotFound, "begins at 2026-01-02T15:00:00Z with abcd00000001 (base)"},
		{"@{2026-01-02}", fault.NotFound, "begins at"},
		{"@{2027-01-02}", fault.Invalid, "future"},
		{"@{-5m}", fault.Invalid, "must be a duration"},
		{"@{}", fault.Invalid, "must be a duration"},
		{"@{5}", fault.Invalid, "must be a duration"},
		{"@{5 minutes ago}", fault.Invalid, "must be a duration"},
		{"@{99999999999w}", fault.Invalid, "must be a duration"},
		{"@{5m", fault.Invalid, "brace"},
		{"@{5m}x", fault.Invalid, "invalid reference"},
		{"HEAD~x", fault.Invalid, "invalid reference"},
		{"HEAD^2", fault.Invalid, "invalid reference"},
		{"HEAD~-1", fault.Invalid, "invalid reference"},
		{"~1", fault.Invalid, "invalid reference"},
		{"HEADx", fault.Invalid, "invalid reference"},
		{"good@{5m}", fault.Invalid, "invalid reference"},
		{"ABCD00000001", fault.Invalid, "invalid reference"},
		{"../../etc", fault.Invalid, "invalid reference"},
		{"a\x1b[2Jb", fault.Invalid, `\x1b[2J`},
		{strings.Repeat("~", 1000), fault.Invalid, "..."},
	} {
		id, err := sample().Resolve(c.ref, now)
		if id != "" || !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q = %q, %v (%s); want %s with %q", c.ref, id, err, fault.KindOf(err), c.kind, c.says)
		}
		if fault.HintOf(err) == "" {
			t.Errorf("%q: no hint with %v", c.ref, err)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%.20q: an error of %d bytes", c.ref, len(err.Error()))
		}
	}
}

func TestParseAgo(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for in, want := range map[string]time.Duration{
		"5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "2d": 2 * day, "1w": 7 * day,
		"1w2d3h4m5s": 9*day + 3*time.Hour + 4*time.Minute + 5*time.Second,
		"1.5h":       90 * time.Minute, "0s": 0, "10ms": 10 * time.Millisecond,
	} {
		if got, ok := parseAgo(in); got != want || !ok {
			t.Errorf("parseAgo(%q) = %v, %v", in, got, ok)
		}
	}
	for _, in := range []string{"", "m", "5", "2d1w", "d", "1d+5m", "-1d", "1d-5m", "106752d", "1y", "15250w2d"} {
		if got, ok := parseAgo(in); ok {
			t.Errorf("parseAgo(%q) = %v", in, got)
		}
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	h := sample()
	want := map[SnapshotID]string{"abcd00000001": "abcd00000001", "abcd00000002": "abcd00000002",
		"ef0000000003": "ef0000000003", "ef0000000004": "ef0000000004"}
	h.Snapshots["123400000000"] = Snapshot{ID: "123400000000"}
	h.Snapshots["567800000000"] = Snapshot{ID: "567800000000"}
	h.Tags["5678"] = "123400000000"
	want["123400000000"], want["567800000000"] = "1234", "56780"
	all := h.Shorts()
	for id, short := range want {
		if h.Short(id) != short || all[id] != short {
			t.Errorf("%s: Short %s, Shorts %s, want %s", id, h.Short(id), all[id], short)
		}
		if got, err := h.Resolve(short, epoch); got != id || err != nil {
			t.Errorf("%s resolves to %s, %v", short, got, err)
		}
	}
}

func FuzzRef(f *testing.F) {
	for _, s := range []string{
		"", "HEAD", "HEAD~3", "HEAD^^~2", "@", "@{5m}", "@{1w2d}~4", "@{2026-01-02T15:04:05Z}", "@{2026-01-02}",
		"abcd", "good~1",
		"@{5m", "~~~", "^", "@{}", "HEAD~18446744073709551616", "@{9223372036854775807ns}", "a\x00", "é",
	} {
		f.Add(s)
	}
	h := sample()
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s, time.UTC)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || r != (Ref{}) {
				t.Fatalf("%q: %+v, %v", s, r, err)
			}
		} else if again, err := ParseRef(r.String(), time.UTC); err != nil || again.String() != r.String() ||
			again.Up != r.Up || again.Ago != r.Ago || !again.At.Equal(r.At) {
			t.Fatalf("%q reads as %+v, whose text %q reads as %+v, %v", s, r, r.String(), again, err)
		}
		id, err := h.Resolve(s, epoch.Add(time.Hour))
		if _, ok := h.Snapshots[id]; ok != (err == nil) {
			t.Fatalf("%q = %q, %v", s, id, err)
		}
		if err != nil && strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
			t.Fatalf("%q: control bytes in %q", s, err)
		}
	})
}

func TestBrief_ReplacesInvisible(t *testing.T) {
	t.Parallel()
	if got := brief("fix\u3164 \u202eit\x1b[31m\nmore"); got != "fix? ?it?[31m" {
		t.Errorf("%q", got)
	}
}
