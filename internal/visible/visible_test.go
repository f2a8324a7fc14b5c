package visible

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// invisible are characters that terminals and browsers display as nothing, as a space, or as something other than their
// place in the text.
var invisible = []struct{ from, to rune }{
	{0, 0x1f}, {0x7f, 0xa0}, {0xad, 0xad}, {0x34f, 0x34f}, {0x61c, 0x61c}, {0x115f, 0x1160}, {0x1680, 0x1680},
	{0x17b4, 0x17b5},
	{0x180b, 0x180f}, {0x2000, 0x200f}, {0x2028, 0x202f}, {0x205f, 0x206f}, {0x2800, 0x2800}, {0x3000, 0x3000},
	{0x3164, 0x3164},
	{0xd800, 0xf8ff}, {0xfdd0, 0xfdef}, {0xfe00, 0xfe0f}, {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb},
	{0xfffd, 0xffff},
	{0x13441, 0x13442}, {0x16fe4, 0x16fe4}, {0x1bca0, 0x1bca3}, {0x1d159, 0x1d159}, {0x1d173, 0x1d17a}, {0x1fffe, 0x1ffff},
	{0xe0000, 0xe0fff}, {0xf0000, 0x10ffff},
}

func TestRune_RejectsInvisible(t *testing.T) {
	t.Parallel()
	for _, in := range invisible {
		for r := in.from; r <= in.to; r++ {
			if Rune(r) {
				t.Errorf("U+%04X is shown", r)
			}
		}
	}
	for _, s := range []string{"plain", "café", "cafe\u0301", "☕", "日本語", "한국어", "العربية", "हिन्दी", "ไทย", "€¥", "🎉"} {
		if got := Clean(s); got != s {
			t.Errorf("Clean(%q) = %q", s, got)
		}
	}
}

// TestClean_EscapesInvisible covers names that could hide from a list of changes in a review.
func TestClean_EscapesInvisible(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\u3164": `a\u3164`, "\u115f": `\u115f`, "\uffa0": `\uffa0`, "\u2800": `\u2800`, "x\ufe0f": `x\ufe0f`,
		"\u034f": `\u034f`, "\u180b": `\u180b`, "\U000e0100": `\U000e0100`, "a\u00a0b": `a\u00a0b`,
		"\u0301x": `\u0301x`, " \u0301": ` \u0301`, "\u202e\u0301": `\u202e\u0301`, "a\u0301\u0302": "a\u0301\u0302",
		"\n\u0301":     `\n\u0301`,
		"plain \u0301": `plain \u0301`, "\xff": `\377`, "\ue000": `\ue000`, "\U000e0001": `\U000e0001`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestClean_OutputIsVisible checks every character, alone and among others: the output is visible, and different texts
// look different.
func TestClean_OutputIsVisible(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 || r > 0x33000 && r&0xfff > 0x1ff {
			continue // not UTF-8; of planes that are empty or private, a sample
		}
		seen(t, string(r)+"a"+string(r))
	}
	odd := rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune{'\u0301', '\u202e', '\u3164', ' ', 'a', '\n', 0xfffd}))
	rapid.Check(t, func(rt *rapid.T) {
		seen(rt, rapid.StringOf(odd).Draw(rt, "text"))
		seen(rt, string(rapid.SliceOf(rapid.Byte()).Draw(rt, "bytes")))
	})
}

func seen(t interface{ Errorf(string, ...any) }, s string) {
	out := Clean(s)
	if out != "" && out != " " && strings.TrimSpace(out) == "" && strings.Trim(s, " ") != "" {
		t.Errorf("Clean(%q) = %q shows nothing", s, out)
	}
	before := ' '
	for _, r := range out {
		switch {
		case r == utf8.RuneError || !unicode.IsPrint(r),
			unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector,
				unicode.Bidi_Control):
			t.Errorf("Clean(%q) = %q, which contains U+%04X", s, out, r)
		case unicode.Is(unicode.M, r) && before == ' ':
			t.Errorf("Clean(%q) = %q, in which U+%04X combines with nothing", s, out, r)
		}
		before = r
	}
	if Clean(out) != out {
		t.Errorf("Clean(%q) = %q, which Clean changes again", s, out)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\u3164\u0301")
	f.Fuzz(func(t *testing.T, s string) { seen(t, s) })
}
