package policy

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParsePath(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"/a//b/./c/", "/w", "/a/b/c"}, {"/", "/w", "/"}, {"~", "/w", "~"}, {"~/", "/w", "~"}, {"~/a/*", "/w", "~/a/*"},
		{".", "/w/p", "/w/p"}, {"./a", "/w/p", "/w/p/a"}, {"./*", "/w/p", "/w/p/*"}, {"./..a", "/w", "/w/..a"},
		{".", ".", "."}, {"./a", ".", "./a"}, {"./a", "x", "./x/a"}, {"./a", "./x/y", "./x/y/a"},
	} {
		if p, err := ParsePath(c[0], c[1]); err != nil || p.String() != c[2] {
			t.Errorf("%s in %s: %s, %v; want %s", c[0], c[1], p, err, c[2])
		}
	}
	for _, c := range [][2]string{
		{"", "/w"}, {"a", "/w"}, {"..", "/w"}, {"../a", "/w"}, {"./../a", "/w/p"}, {"/a/..", "/w"}, {"~/..", "/w"},
		{"~/../b", "/w"}, {"~b", "/w"}, {"~b/c", "/w"}, {"$HOME", "/w"}, {`C:\a`, "/w"},
		{"*", "/w"}, {"/*", "/w"}, {"~/*", "/w"}, {"/a*", "/w"}, {"/*/a", "/w"}, {"/a/**", "/w"}, {"/a/?", "/w"},
		{"/a/[b]", "/w"}, {"/a/{b,c}", "/w"}, {`/a\b`, "/w"},
		{"/a\x00", "/w"}, {"/a\n", "/w"}, {"/a\x1b[0m", "/w"}, {"/a\u202e", "/w"}, {"/a\xff", "/w"}, {"./a", "/w/*"},
		{"./a", "/w/[x]"}, {"./a", ".."}, {"./a", "../x"},
	} {
		if p, err := ParsePath(c[0], c[1]); !fault.Is(err, fault.Invalid) || !p.IsZero() || fault.HintOf(err) == "" {
			t.Errorf("%q in %s: %s, %v; want a refusal", c[0], c[1], p, err)
		}
	}
}

func TestPath_Beneath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p, o string
		want bool
	}{
		{"/a", "/a", true}, {"/a/b", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a", "/", true},
		{"/", "/", true},
		{"/a/b", "/a/*", true}, {"/a/b/c", "/a/*", true}, {"/a", "/a/*", false}, {"/a/*", "/a/*", true}, {"/a/*", "/a", true},
		{"/a/b/*", "/a/*", true}, {"/ab/c", "/a/*", false},
		{"~/a", "~", true}, {"~", "~/a", false}, {"~/a", "/home/u", false}, {"/home/u/a", "~", false},
	} {
		p, err := ParsePath(c.p, "/w")
		o, oerr := ParsePath(c.o, "/w")
		if err != nil || oerr != nil {
			t.Fatal(err, oerr)
		}
		if got := p.beneath(o); got != c.want {
			t.Errorf("%s beneath %s: %v", p, o, got)
		}
		if at := p.in("/home/u/").beneath(o.in("/home/u/")); at != c.want && c.p[0] == c.o[0] {
			t.Errorf("%s beneath %s, with a home directory: %v", p, o, at)
		}
	}
	home, err := ParsePath("~/a", "/w")
	if err != nil || home.in("/home/u/").String() != "/home/u/a" || home.in("/").String() != "/a" || home.in("").
		String() != "~/a" {
		t.Errorf("%s, %v", home.in("/home/u"), err)
	}
}
