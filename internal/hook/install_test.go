package hook

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func claude(t *testing.T) Harness {
	t.Helper()
	h, err := Find("claude-code")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestMerge_KeepsExistingSettings(t *testing.T) {
	t.Parallel()
	h := claude(t)
	old := `{"zeta": 1e400, "model":"x<y>&é\u00e9", "big": 12345678901234567890,
  "hooks": {"Stop":[{"hooks":[{"type":"command","command":"bye"}]}],
    "PreToolUse":[{"matcher":"Bash","hooks":[{"type":"command","command":"check","timeout":3}]}, 7]},
  "alpha": {"b":1,"a":[]}}`
	got, err := h.Merge([]byte(old))
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, got); err != nil {
		t.Fatal(err)
	}
	text := compact.String()
	for _, want := range []string{
		`{"zeta":1e400,"model":"x<y>&é\u00e9","big":12345678901234567890,"hooks":{"Stop":[{"hooks":[{"type":"command","command":"bye"}]}],"PreToolUse":[` +
			`{"matcher":"Bash","hooks":[{"type":"command","command":"check","timeout":3}]},7,{"matcher":"*"`,
		`"PostToolUse":[{"matcher":"*"`, `},"alpha":{"b":1,"a":[]}}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the result does not contain %s:\n%s", want, text)
		}
	}
	again, err := h.Merge(got)
	if err != nil || !bytes.Equal(again, got) {
		t.Errorf("merged again, %v:\n%s", err, again)
	}
	// An older version of Coppice's hook is replaced in place. One that was combined with others is kept.
	older := strings.Replace(text, `"timeout":5}]}],"alpha"`, `"timeout":50}]}],"alpha"`, 1)
	if renewed, err := h.Merge([]byte(older)); err != nil || !bytes.Equal(renewed, got) {
		t.Errorf("an older hook, %v:\n%s", err, renewed)
	}
	byHand := `{"hooks":{"PreToolUse":[{"hooks":[{"command":"a"},{"command":"use /run/coppice.sock"}]}]}}`
	if left, err := h.Merge([]byte(byHand)); err != nil || strings.Count(string(left), "PreToolUse") != 1 ||
		strings.Contains(string(left), ` begin `) {
		t.Errorf("a hook that was combined by hand, %v:\n%s", err, left)
	}
}

func TestMerge_RefusesInvalidSettings(t *testing.T) {
	t.Parallel()
	for _, old := range []string{
		"{", "[]", "null", `"x"`, "3", `{} {}`, `{"a":1,}`, "// a comment\n{}", `{"a":1,"a":2}`, `{"hooks":[]}`,
		`{"hooks":null}`,
		`{"hooks":{"PreToolUse":{}}}`, `{"hooks":{"PreToolUse":null}}`, `{"hooks":{"Stop":[],"Stop":[]}}`,
		`{"hooks":{"PreToolUse":["/run/coppice.sock"]}}`,
	} {
		if got, err := claude(t).Merge([]byte(old)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v\n%s", old, err, got)
		}
	}
	h, err := Find("opencode")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Merge([]byte("export const Coppice = 3")); !fault.Is(err, fault.Exists) {
		t.Errorf("a plugin of another author: %v", err)
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	for _, h := range Harnesses() {
		dir := t.TempDir()
		for user, name := range map[bool]string{false: h.Project, true: h.User} {
			path, changed, err := h.Install(dir, user)
			if err != nil || path != filepath.Join(dir, name) {
				t.Fatalf("%s: %s %v", h.Name, path, err)
			}
			b, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(b, config(t, h)) || !changed && h.Project != h.User {
				t.Errorf("%s: %v\n%s", h.Name, err, b)
			}
			if _, changed, err := h.Install(dir, user); err != nil || changed {
				t.Errorf("%s, installed again: %v %v", h.Name, changed, err)
			}
		}
	}
}

func TestInstall_IsAtomic(t *testing.T) {
	t.Parallel()
	h := claude(t)
	dir := t.TempDir()
	path := filepath.Join(dir, h.Project)
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"a":`, 0o600)
	if _, _, err := h.Install(dir, false); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("a truncated file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != `{"a":` {
		t.Errorf("the file was changed: %q %v", b, err)
	}
	write(`{"env":{"KEY":"secret"}}`, 0o600)
	if _, _, err := h.Install(dir, false); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if b, _ := os.ReadFile(path); !bytes.Contains(b, []byte(`"KEY": "secret"`)) ||
		!bytes.Contains(b, []byte("PreToolUse")) {
		t.Errorf("%s", b)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("leftover files: %v %v", left, err)
	}
}

func TestInstall_FollowsLinksWithinRoot(t *testing.T) {
	t.Parallel()
	h := claude(t)
	link := func(to, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	victim := filepath.Join(outside, "settings.json")
	if err := os.WriteFile(victim, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(dir string){
		"the file":      func(dir string) { link(victim, filepath.Join(dir, h.Project)) },
		"its directory": func(dir string) { link(outside, filepath.Join(dir, ".claude")) },
		"dangling":      func(dir string) { link(filepath.Join(outside, "new"), filepath.Join(dir, h.Project)) },
	} {
		dir := t.TempDir()
		make(dir)
		if _, _, err := h.Install(dir, false); err == nil || fault.HintOf(err) == "" {
			t.Errorf("a link to %s outside: %v", name, err)
		}
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "{}" {
		t.Errorf("a file outside was written: %s %v", b, err)
	}
	dir := t.TempDir()
	real := filepath.Join(dir, "dotfiles", "claude.json")
	link("../dotfiles/claude.json", filepath.Join(dir, h.Project))
	if err := os.Mkdir(filepath.Dir(real), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(real, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Install(dir, false); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(filepath.Join(dir, h.Project)); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v %v", st, err)
	}
	if b, _ := os.ReadFile(real); !bytes.Contains(b, []byte("PreToolUse")) {
		t.Errorf("%s", b)
	}
}
