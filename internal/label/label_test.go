package label

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

func TestParse_ReadsWhatDockerReads(t *testing.T) {
	t.Parallel()
	got, err := Parse([]string{"team=web", "ci", "url=https://example.com/?a=b", "team=api", "example.com/x-y_z=1", "9=ü"})
	want := map[string]string{"team": "api", "ci": "", "url": "https://example.com/?a=b", "example.com/x-y_z": "1", "9": "ü"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := Parse(nil); got != nil || err != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
}

// hostile maps labels that are refused to a part of the error.
var hostile = map[string]string{
	"=x":                "the key is empty",
	"":                  "the key is empty",
	"Team=x":            "invalid label key",
	"te am=x":           "invalid label key",
	"-team=x":           "invalid label key",
	"team.=x":           "invalid label key",
	"a/=x":              "invalid label key",
	"../a=x":            "invalid label key",
	"täm=x":             "invalid label key",
	"a\x00b=x":          "invalid label key",
	"a\x1b[2J=x":        "invalid label key",
	"a\n=x":             "invalid label key",
	"\xff=x":            "invalid label key",
	"a=\x00":            "invalid value of label a",
	"a=x\ny":            "invalid value of label a",
	"a=x\ty":            "invalid value of label a",
	"a=\x1b]0;title\a":  "invalid value of label a",
	"a=\u202egnp.exe":   "invalid value of label a",
	"a=\u200b":          "invalid value of label a",
	"a=\u0301":          "invalid value of label a",
	"a=\xff\xfe":        "invalid value of label a",
	"a=\u0085":          "invalid value of label a",
	"a=\U000e0041":      "invalid value of label a",
	"a=\xed\xa0\x80low": "invalid value of label a",
}

func TestParse_RefusesHostileLabels(t *testing.T) {
	t.Parallel()
	for text, want := range hostile {
		_, err := Parse([]string{text})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, want %q", text, err, want)
			continue
		}
		for _, r := range err.Error() {
			if r == utf8.RuneError || !unicode.IsPrint(r) {
				t.Errorf("%q: the error %q has %q in it", text, err, r)
			}
		}
	}
}

func TestChange_IsBounded(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range limit.Labels {
		many[fmt.Sprintf("k%d", i)] = ""
	}
	big := map[string]string{}
	for i := range limit.LabelBytes/limit.LabelValue - 1 {
		big[fmt.Sprintf("%d", i)] = strings.Repeat("v", limit.LabelValue)
	}
	used := 0
	for k, v := range big {
		used += len(k) + len(v)
	}
	for name, c := range map[string]struct{ old, fits, beyond map[string]string }{
		"number": {many, map[string]string{"k1": "x"}, map[string]string{"one-more": ""}},
		"key": {nil, map[string]string{strings.Repeat("k", limit.LabelKey): ""},
			map[string]string{strings.Repeat("k", limit.LabelKey+1): ""}},
		"value": {nil, map[string]string{"k": strings.Repeat("v", limit.LabelValue)},
			map[string]string{"k": strings.Repeat("v", limit.LabelValue+1)}},
		"all": {big, map[string]string{"k": strings.Repeat("v", limit.LabelBytes-used-1)},
			map[string]string{"k": strings.Repeat("v", limit.LabelBytes-used-1), "l": ""}},
	} {
		if _, err := Change(c.old, c.fits, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Change(c.old, c.beyond, nil); !fault.Is(err, fault.TooLarge) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, want too_large", name, err)
		}
	}
	if _, err := Change(many, map[string]string{"one-more": ""}, []string{"k0"}); err != nil {
		t.Errorf("replacing one label at the limit: %v", err)
	}
}

func TestChange_SharesNothing(t *testing.T) {
	t.Parallel()
	old := map[string]string{"a": "1", "b": "2", "c": "3"}
	got, err := Change(old, map[string]string{"a": "x", "d": "4", "c": "y"}, []string{"b", "c", "unknown"})
	if want := []string{"a=x", "c=y", "d=4"}; err != nil || !slices.Equal(List(got), want) {
		t.Errorf("%v, %v, want %v", List(got), err, want)
	}
	if want := []string{"a=1", "b=2", "c=3"}; !slices.Equal(List(old), want) {
		t.Errorf("the old labels are %v", List(old))
	}
	if got, err := Change(old, nil, []string{"a", "b", "c"}); got != nil || err != nil {
		t.Errorf("%v, %v, want nil", got, err)
	}
	if _, err := Change(old, nil, []string{"A"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an invalid key: %v", err)
	}
}

// FuzzParse checks that accepted labels are harmless in a terminal, and round-trip.
func FuzzParse(f *testing.F) {
	for text := range hostile {
		f.Add(text)
	}
	f.Add("team=web")
	f.Fuzz(func(t *testing.T, text string) {
		labels, err := Parse([]string{text})
		if err != nil {
			return
		}
		again, err := Parse(List(labels))
		if err != nil || !maps.Equal(again, labels) {
			t.Errorf("%q: %v, %v", text, again, err)
		}
		for _, r := range List(labels)[0] {
			if r == utf8.RuneError || !unicode.IsPrint(r) {
				t.Errorf("%q has %q in it", text, r)
			}
		}
	})
}
