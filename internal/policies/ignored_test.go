//go:build linux

package policies

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

func TestIgnored(t *testing.T) {
	t.Parallel()
	s := New(Config{Homes: []string{"/home/me", "/h"}})
	for _, c := range []struct {
		text, root, tier string
		want             []string
		refused          string
	}{
		{text: "{}", root: "/"},
		{text: "{history: {ignore: [./node_modules, ~/.cache, /p/node_modules/x]}}", root: "/",
			want: []string{"/home/me/.cache", "/p/node_modules"}},
		{text: "{history: {ignore: [./node_modules, /q]}}", root: "/p", want: []string{"/node_modules", "/q"}},
		{text: "{history: {ignore: [/x]}}", root: "/", tier: workspace, refused: "tier workspace does not support"},
		{text: "{history: {ignore: [~/.ssh/x]}}", root: "/", refused: "/home/me/.ssh is hidden"},
		{text: "{history: {ignore: [~/.ssh]}}", root: "", want: []string{"/home/me/.ssh"}},
		{text: "{files: {hide: [/x/*]}, history: {ignore: [/x/y]}}", root: "", refused: "/x/* is hidden"},
		{text: "{history: {ignore: [/home/me/.cache]}}", root: "/", want: []string{"/home/me/.cache"}}, // around a hidden one
		{text: "{files: {readonly: [/x/y]}, history: {ignore: [/x]}}", refused: "overlaps /x/y, which is read-only"},
		{text: "{files: {readonly: [/x]}, history: {ignore: [/x/y]}}", refused: "overlaps /x, which is read-only"},
		{text: "{files: {mounts: [{from: /a, to: /x/y}]}, history: {ignore: [/x]}}", refused: "where the policy mounts /a"},
		{text: "{files: {writable: [/y]}, history: {ignore: [/x]}}", refused: "not in the paths of files.writable"},
		{text: "{files: {writable: [/x]}, history: {ignore: [/x/y]}}", want: []string{"/x/y"}},
		{text: "{history: {ignore: [/tmp/x]}}", refused: "/tmp has no history"},
		{text: "{history: {ignore: [/proc]}}", refused: "/proc has no history"},
	} {
		text := `{"version": 1, ` + strings.TrimPrefix(c.text, "{")
		d, err := policy.Parse("/p/coppice.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
		if err != nil {
			t.Fatal(err)
		}
		rec := meta.Sandbox{Config: meta.Config{Root: c.root, Tier: c.tier}}
		rec.Ignored, err = s.Ignored(p, &rec)
		if err == nil {
			_, err = accessOf(p, &rec, s.config.Homes)
		}
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) || fault.HintOf(err) == "" {
				t.Errorf("%s: %v, hint %q", c.text, err, fault.HintOf(err))
			}
			continue
		}
		if err != nil || !slices.Equal(rec.Ignored, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.text, rec.Ignored, err, c.want)
		}
	}
}

func TestIgnored_IsBounded(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	rec := meta.Sandbox{}
	var p policy.Policy
	for i := range maxIgnored + 1 {
		one, err := policy.ParsePath("/x/"+strconv.Itoa(i), "/")
		if err != nil {
			t.Fatal(err)
		}
		all, err := s.Ignored(p, &rec)
		if err != nil || len(all) != i {
			t.Fatalf("%d: %q, %v", i, all, err)
		}
		p.Ignore = append(p.Ignore, policy.Said[policy.Path]{Value: one})
	}
	if all, err := s.Ignored(p, &rec); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("%q, %v", all, err)
	}
}
