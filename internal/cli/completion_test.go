package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coppice-dev/coppice/client/wire"
)

// completing returns a program whose daemon has the sandbox "box", with the tag "good".
func completing(t *testing.T) *app {
	t.Helper()
	mux := http.NewServeMux()
	serve := func(path string, v any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	serve("GET /v1/sandboxes", wire.ListResult{Sandboxes: []wire.Sandbox{{ID: "0123456789ab", Name: "box", From: "origin@0123456789ab",
		Labels: map[string]string{"team": "web"}}}})
	serve("GET /v1/sandboxes/box/log", wire.LogResult{Nodes: []wire.Snapshot{{ID: "aaaaaaaaaaaa", Tags: []string{"good"}}}})
	serve("GET /v1/sandboxes/box/tags", wire.TagsResult{Tags: map[string]string{"good": "aaaaaaaaaaaa"}})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return &app{getenv: func(key string) string {
		return map[string]string{"COPPICE_HOST": srv.URL, "COPPICE_TOKEN": "t"}[key]
	}}
}

// words returns the completions in list without their descriptions.
func words(list []string) (out []string) {
	for _, w := range list {
		w, _, _ = strings.Cut(w, "\t")
		out = append(out, w)
	}
	return out
}

// TestCompletion_OfArguments checks that every command that takes a sandbox, a tag or a snapshot completes it.
func TestCompletion_OfArguments(t *testing.T) {
	t.Parallel()
	// Commands that create what their argument names.
	fresh := []string{"coppice create", "coppice run", "coppice token create", "coppice git pull"}
	found := 0
	for _, cmd := range family(completing(t).root()) {
		cmd.SetContext(t.Context())
		use := regexp.MustCompile(`[\[\]{}|]|\.\.\.|:PATH`).ReplaceAllString(cmd.Use, " ")
		var given []string
		for _, word := range strings.Fields(use)[1:] {
			want := map[string]string{"NAME": "box", "SANDBOX": "box", "TAG": "good", "REF": "HEAD"}[word]
			if word == "flags" {
				continue
			}
			if word == "--" || want == "" && len(given) == 0 || slices.Contains(fresh, cmd.CommandPath()) {
				break
			}
			if want == "" {
				continue
			}
			if cmd.ValidArgsFunction == nil {
				t.Errorf("%s does not complete %s", cmd.CommandPath(), word)
				break
			}
			list, _ := cmd.ValidArgsFunction(cmd, given, "")
			if got := words(list); !slices.ContainsFunc(got, func(w string) bool { return strings.TrimSuffix(w, ":") == want }) {
				t.Errorf("%s offers %q for %s after %q, want %s", cmd.CommandPath(), got, word, given, want)
			}
			given = append(given, want)
			found++
		}
	}
	if found < 40 {
		t.Errorf("only %d arguments were completed", found)
	}
}

// TestCompletion_OfFlags checks that every flag that takes a sandbox, a snapshot, a tier, a driver or a filter
// completes it.
func TestCompletion_OfFlags(t *testing.T) {
	t.Parallel()
	// Flags whose NAME is not that of an existing sandbox.
	others := []string{"name", "as", "remote", "allow-host"}
	byName := map[string]string{"tier": "gvisor", "driver": "overlay", "runtime": "runc", "filter": "label=",
		"label-rm": "team"}
	byValue := map[string]string{"NAME": "box", "SANDBOX": "box", "REF": "HEAD", "TAG": "good", "SOURCE": "box"}
	found := 0
	for _, cmd := range family(completing(t).root()) {
		cmd.SetContext(t.Context())
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			want := byName[f.Name]
			if want == "" && !slices.Contains(others, f.Name) {
				want = byValue[value]
			}
			if want == "" {
				return
			}
			found++
			complete, ok := cmd.GetFlagCompletionFunc(f.Name)
			if !ok {
				t.Errorf("%s does not complete --%s %s", cmd.CommandPath(), f.Name, value)
				return
			}
			list, _ := complete(cmd, []string{"box"}, "")
			if !slices.Contains(words(list), want) {
				t.Errorf("%s --%s offers %q, want %s", cmd.CommandPath(), f.Name, list, want)
			}
		})
	}
	if found < 15 {
		t.Errorf("only %d flags were completed", found)
	}
}

func TestCompletion_OfFilters(t *testing.T) {
	t.Parallel()
	a := completing(t)
	cmd := &cobra.Command{}
	cmd.SetContext(context.Background())
	for part, want := range map[string]string{
		"":         "label= name= state= tier= driver= origin=",
		"label=t":  "label=team label=team=web",
		"name=":    "name=box",
		"origin=":  "origin=origin",
		"driver=o": "driver=overlay driver=copy driver=btrfs",
		"colour=":  "",
	} {
		if got, _ := a.filters(cmd, nil, part); strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %s", part, got, want)
		}
	}
}

// TestCompletion_OffersPlainWords checks that no completion is code to a shell: labels and tags may have been chosen
// inside a sandbox, and bash inserts the common prefix of two completions unquoted.
func TestCompletion_OffersPlainWords(t *testing.T) {
	t.Parallel()
	for _, w := range []string{"box", "label=team=web", "origin@0123456789ab", "HEAD", "0123456789ab\techo $(id)", "a:/b"} {
		if !plainWord(w) {
			t.Errorf("%q is not offered", w)
		}
	}
	for _, w := range []string{"", "label=a=$(id)", "a b", "a;b", "a`b`", "-f", "a\nb", "\x1b[2J", "a'", "{a,b}", "~root", "*", "é"} {
		if plainWord(w) {
			t.Errorf("%q is offered", w)
		}
	}
}
