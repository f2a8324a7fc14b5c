package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestMerge_ProjectOnlyAsksToIgnore checks that a project's file leaves nothing out of the history, and that what it
// asks for and its owner does not ignore is reported with the flag that does.
func TestMerge_ProjectOnlyAsksToIgnore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		user, project, flags string
		want                 []string
		noted                string
	}{
		{project: "[./node_modules]", noted: "to allow it, use --ignore /w/p/node_modules"},
		{project: "[./node_modules]", flags: "[/w/p/node_modules]", want: []string{"/w/p/node_modules"}},
		{project: "[./a/b]", user: "[/w/p/a]", want: []string{"/w/p/a"}},
		{project: "[~/.cache]", user: "[/home/me/.cache]", want: []string{"/home/me/.cache"}},
		{project: "[~/.npm]", user: "[/home/me/.cache]", want: []string{"/home/me/.cache"}, noted: "cannot ignore ~/.npm"},
		{user: "[~/.cache, /x]", flags: "[~/.cache]", want: []string{"/x", "~/.cache"}},
		{user: "[]"},
	} {
		var layers []Layer
		for level, text := range map[Level]string{User: c.user, Project: c.project, Flags: c.flags} {
			if text == "" {
				continue
			}
			d, err := Parse("/w/p/coppice.yaml", []byte("version: 1\nhistory: {ignore: "+text+"}\n"))
			if err != nil {
				t.Fatal(told(err))
			}
			layers = append(layers, Layer{level, d})
		}
		p, err := MergeAt("/home/me", layers...)
		if err != nil {
			t.Fatal(err)
		}
		if got := texts(p.Ignore); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
		var notes []string
		for _, n := range p.Notes {
			notes = append(notes, n.String())
		}
		if all := strings.Join(notes, "\n"); !strings.Contains(all, c.noted) || (c.noted == "") != (all == "") {
			t.Errorf("%+v: notes %q", c, notes)
		}
		text, err := p.Canonical()
		if err != nil || strings.Contains(string(text), `"history":`) != (len(c.want) > 0) {
			t.Errorf("%+v: %s, %v", c, text, err)
		}
		if again, err := ParseCanonical(text); err != nil || !slices.Equal(texts(again.Ignore), c.want) {
			t.Errorf("%s: %q, %v", text, texts(again.Ignore), err)
		}
	}
}

func TestParse_RefusesToIgnorePatterns(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"/", "/x/*", "~/*", "node_modules", "../x", "/a*", ""} {
		if d, err := Parse("/w/p/coppice.yaml", []byte("version: 1\nhistory: {ignore: [\""+bad+"\"]}\n")); err == nil {
			t.Errorf("%q is ignored: %+v", bad, d.Ignore)
		}
	}
}

func TestDiff_IgnoringIsWider(t *testing.T) {
	t.Parallel()
	p, err := Merge(layer(t, Flags, "history: {ignore: [/x]}"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Merge()
	if err != nil {
		t.Fatal(err)
	}
	want := Change{Way: Wider, Key: "history.ignore", Value: "/x"}
	if got := Diff(d, p); !slices.Contains(got, want) {
		t.Errorf("%+v", got)
	}
	if got := Explain(p); !slices.ContainsFunc(got, func(l Line) bool { return l.Key == want.Key && l.Value == "/x" }) {
		t.Errorf("%+v", got)
	}
}
