//go:build linux

package grants

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policies"
)

// project returns the policy file of a project in a directory.
func project(dir, secrets string) []wire.PolicyFile {
	return []wire.PolicyFile{{Level: wire.PolicyProject, Name: dir + "/coppice.yaml",
		Text: "version: 1\nsecrets: " + secrets + "\n"}}
}

func section(t *testing.T, files []wire.PolicyFile) grant.Section {
	t.Helper()
	s, err := policies.Secrets(files)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConsent_BindsTheRequest checks that a request is refused without a consent, which holds for the whole request in
// one directory, is recorded before it is stored, and ends.
func TestConsent_BindsTheRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := project("/src/app", "{github: {secret: pat, uses: 5}}")
	asks := section(t, files)
	digest := asks.Requested[0].Digest()

	_, err := w.Wanted(t.Context(), asks, nil)
	if !fault.Is(err, fault.Denied) ||
		!strings.Contains(fault.HintOf(err), "coppice grants consent /src/app/coppice.yaml") {
		t.Fatalf("%v, hint %s", err, fault.HintOf(err))
	}
	for _, bad := range []wire.ConsentRequest{{Policy: files}, {Policy: files, Digests: []string{"sha256:0"}},
		{Policy: project("/src/other", "{github: {secret: pat, uses: 5}}"), Digests: []string{digest}},
		{Policy: project("/src/app", "{github: {secret: pat, uses: 6}}"), Digests: []string{digest}},
		{Digests: []string{digest}}} {
		if _, err := w.Consent(t.Context(), bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	w.took()
	w.ledgerErr = errors.New("no space")
	if _, err := w.Consent(t.Context(), wire.ConsentRequest{Policy: files, Digests: []string{digest}}); err == nil {
		t.Error("a consent that cannot be recorded was stored")
	}
	w.ledgerErr = nil
	if all, err := w.ListConsents(t.Context()); err != nil || len(all.Consents) != 0 {
		t.Errorf("%+v, %v", all, err)
	}

	w.took()
	res, err := w.Consent(t.Context(), wire.ConsentRequest{Policy: files, Digests: []string{digest}})
	if err != nil || len(res.Consents) != 1 || res.Consents[0].Digest != digest || res.Consents[0].By != "me" ||
		res.Consents[0].Root != "/src/app" || res.Consents[0].Secret != "pat" {
		t.Fatalf("%+v, %v", res, err)
	}
	if steps := w.took(); !strings.Contains(steps, "consented") {
		t.Errorf("steps %s", steps)
	}
	if _, err := w.Consent(t.Context(), wire.ConsentRequest{Policy: files, Digests: []string{digest}}); err != nil {
		t.Error(err)
	}
	if steps := w.took(); steps != "" {
		t.Errorf("a repeated consent is recorded: %s", steps)
	}
	got, err := w.Wanted(t.Context(), asks, nil)
	if err != nil || got.Specs["github"].Secret != "pat" || got.Specs["github"].Uses != 5 || len(got.Notes) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, other := range [][]wire.PolicyFile{project("/src/app", "{github: {secret: pat, uses: 6}}"),
		project("/src/app", "{github: {secret: admin, uses: 5}}"),
		project("/src/elsewhere", "{github: {secret: pat, uses: 5}}")} {
		if _, err := w.Wanted(t.Context(), section(t, other), nil); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", other[0].Text, err)
		}
	}

	if err := w.RevokeConsent(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	if steps := w.took(); !strings.Contains(steps, "withdrawn") {
		t.Errorf("steps %s", steps)
	}
	if _, err := w.Wanted(t.Context(), asks, nil); !fault.Is(err, fault.Denied) {
		t.Error(err)
	}
	if err := w.RevokeConsent(t.Context(), digest); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestWanted_OptionalAndFlags checks that flags need no consent and replace what a policy says, and which grants are
// omitted.
func TestWanted_OptionalAndFlags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := section(t, append(project("/src/app", "{github: {uses: 5}, gitlab: {optional: true}}"),
		wire.PolicyFile{Level: wire.PolicyUser, Name: "/home/me/coppice.yaml",
			Text: "version: 1\nsecrets: {npm: {ask: first}, signed: {preset: aws, optional: true}}\n"}))
	got, err := w.Wanted(t.Context(), both, map[string]wire.GrantSpec{"github": {Preset: "github", Uses: 9}})
	if err != nil || len(got.Specs) < 2 || got.Specs["github"].Uses != 9 || got.Specs["npm"].Ask != "first" {
		t.Errorf("%+v, %v", got, err)
	}
	if text := strings.Join(got.Notes, "\n"); !strings.Contains(text, "the optional grant gitlab") ||
		!strings.Contains(text, "coppice grants consent /src/app/coppice.yaml") {
		t.Errorf("notes %s", text)
	}
	if _, ok := got.Specs["gitlab"]; ok {
		t.Error("a request without a consent is given")
	}
	if err := w.db.SetSetting(t.Context(), consentsKey, "{"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wanted(t.Context(), both, nil); !fault.Is(err, fault.Corrupt) {
		t.Errorf("with damaged consents: %v", err)
	}
}

// TestAnswerGrants checks that an answer is recorded, reaches the gate, and holds for later requests only if the grant
// asks for the first.
func TestAnswerGrants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := w.add("box", "supervised", true)
	for name, mode := range map[string]string{"github": "first", "npm": "each"} {
		if _, err := w.GiveGrant(t.Context(), "box", name, wire.GrantSpec{Preset: name, Ask: mode}); err != nil {
			t.Fatal(err)
		}
	}
	w.asking = []wire.NetQuestion{
		{Place: "grant:a", Grant: "github", Name: "api.github.com", Method: "GET", Path: "/user"},
		{Place: "grant:b", Grant: "npm", Name: "registry.npmjs.org", Method: "PUT", Path: "/x"}, {Place: "free.example"}}
	for _, places := range [][]string{{"grant:c"}, {"free.example"}, {"grant:a", "grant:c"}} {
		if _, err := w.AnswerGrants(t.Context(), "box", places, true); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", places, err)
		}
	}
	w.took()
	asked, err := w.AnswerGrants(t.Context(), "box", []string{"grant:a", "grant:b"}, true)
	if err != nil || len(asked) != 2 {
		t.Fatalf("%+v, %v", asked, err)
	}
	if steps := w.took(); !strings.HasPrefix(steps, "record approved github, record approved npm, ") {
		t.Errorf("steps %s", steps)
	}
	s := w.set[rec.ID]
	if len(s.Answers) != 2 || s.Answers[0].ID != "a" || !s.Answers[0].Allow {
		t.Errorf("%+v", s.Answers)
	}
	for _, g := range s.Grants {
		if (g.Name == "github") != (len(g.Approved) == 1) {
			t.Errorf("%+v", g)
		}
	}
	if _, err := w.AnswerGrants(t.Context(), "box", []string{"grant:b"}, false); err != nil {
		t.Fatal(err)
	}
	if a := w.set[rec.ID].Answers; len(a) != 1 || a[0].Allow {
		t.Errorf("%+v", a)
	}

	// A box that refuses the answer leaves the grants as they were; a changed grant has no approvals.
	w.asking[0].Name = "uploads.github.com"
	w.boxErr = errors.New("no")
	if _, err := w.AnswerGrants(t.Context(), "box", []string{"grant:a"}, true); err == nil {
		t.Error("an answer that the box refused is given")
	}
	w.boxErr = nil
	approved := func() (hosts []string) {
		rows, err := w.db.Grants(t.Context(), rec.ID)
		if err != nil || rows[0].Name != "github" {
			t.Fatalf("%+v, %v", rows, err)
		}
		return rows[0].Approved
	}
	if got := approved(); len(got) != 1 || got[0] != "api.github.com" {
		t.Errorf("approved %s", got)
	}
	changed := wire.GrantSpec{Preset: "github", Ask: "first", Uses: 3}
	if _, err := w.GiveGrant(t.Context(), "box", "github", changed); err != nil {
		t.Fatal(err)
	}
	if got := approved(); len(got) != 0 {
		t.Errorf("a changed grant has approvals of %s", got)
	}
	if err := w.RevokeGrant(t.Context(), "box", "npm"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.AnswerGrants(t.Context(), "box", []string{"grant:b"}, true); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}
