//go:build linux

package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/proposal"
)

const (
	branchRef   = "refs/heads/coppice/fix-auth"
	proposalRef = "refs/coppice/proposals/fix-auth"
)

// tree returns the files in the tree of a reference of the remote.
func (w *travellers) tree(ref string) map[string]string {
	w.bob.t.Helper()
	files := map[string]string{}
	for _, name := range strings.Split(w.bob.git(w.bare, "ls-tree", "--name-only", ref), "\n") {
		out, said, err := w.bob.in(w.bare, "git", "cat-file", "blob", ref+":"+name)
		if err != nil {
			w.bob.t.Fatal(said)
		}
		files[name] = out
	}
	return files
}

// write writes a tree to the remote. modes has the modes of files other than 100644.
func (w *travellers) write(files map[string]string, modes map[string]string) (tree string) {
	w.bob.t.Helper()
	var list strings.Builder
	for name, text := range files {
		at := filepath.Join(w.bob.home, "content")
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			w.bob.t.Fatal(err)
		}
		mode := modes[name]
		if mode == "" {
			mode = "100644"
		}
		list.WriteString(mode + " blob " + w.bob.git(w.bare, "hash-object", "-w", "--no-filters", at) + "\t" + name + "\x00")
	}
	cmd := exec.Command("git", "mktree", "-z")
	cmd.Dir, cmd.Env, cmd.Stdin = w.bare, w.bob.env, strings.NewReader(list.String())
	out, err := cmd.Output()
	if err != nil {
		w.bob.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// forge replaces the proposal of the remote.
func (w *travellers) forge(files map[string]string, modes map[string]string) {
	w.bob.t.Helper()
	w.bob.git(w.bare, "update-ref", proposalRef, w.bob.git(w.bare, "commit-tree", "-m", "forged", w.write(files, modes)))
}

// says changes the content of the proposal of the remote.
func (w *travellers) says(change func(p *proposal.Proposal)) {
	w.bob.t.Helper()
	files := w.tree(proposalRef)
	p, err := proposal.Decode([]byte(files[proposal.FileProposal]))
	if err != nil {
		w.bob.t.Fatal(err)
	}
	change(p)
	var b bytes.Buffer // Encode refuses invalid values
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(p); err != nil {
		w.bob.t.Fatal(err)
	}
	files[proposal.FileProposal] = b.String()
	w.forge(files, nil)
}

// flipped returns s with its middle byte changed.
func flipped(s string) string {
	b := []byte(s)
	b[len(b)/2] ^= 1
	return string(b)
}

// unkeyed changes a byte of the first key. Another byte may belong to a value, which can be anything.
func unkeyed(s string) string { return strings.Replace(s, `"schema"`, `"schemb"`, 1) }

// TestPull_RefusesHostileRemote checks that a pull refuses an invalid proposal, and leaves nothing behind. A remote
// may have any content under the name of a proposal.
func TestPull_RefusesHostileRemote(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	w.alice.run("create", "other", "--repo", ".", "-q")
	t.Cleanup(func() { w.alice.try("rm", "--force", "other") })
	w.alice.run("exec", "other", "--", "true")
	w.alice.run("ledger", "export", "other", "-o", filepath.Join(w.alice.home, "other.bundle"))
	otherLedger, err := os.ReadFile(filepath.Join(w.alice.home, "other.bundle"))
	if err != nil {
		t.Fatal(err)
	}
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	good := map[string]string{}
	for _, ref := range []string{branchRef, proposalRef} {
		good[ref] = w.bob.git(w.bare, "rev-parse", ref)
	}
	main := w.bob.git(w.bare, "rev-parse", "refs/heads/main")
	change := func(name string, how func(string) string) func() {
		return func() {
			files := w.tree(proposalRef)
			files[name] = how(files[name])
			w.forge(files, nil)
		}
	}
	to := func(text string) func(string) string { return func(string) string { return text } }
	work := func(tree string) string {
		c := w.bob.git(w.bare, "commit-tree", "-p", main, "-m", "evil", tree)
		w.bob.git(w.bare, "update-ref", branchRef, c)
		w.says(func(p *proposal.Proposal) { p.Work, p.Tip = c, c })
		return c
	}
	for _, c := range []struct {
		name, why string
		do        func()
	}{
		{"another tip", "its branch is at", func() { w.bob.git(w.bare, "update-ref", branchRef, main) }},
		{"what it says, a byte", "invalid proposal", change(proposal.FileProposal, unkeyed)},
		{"what it says, more", "invalid proposal",
			change(proposal.FileProposal, func(s string) string { return strings.Replace(s, "{", `{"evil":1,`, 1) })},
		{"records, a byte", "verify the ledger", change(proposal.FileLedger, flipped)},
		{"no records", "verify the ledger", change(proposal.FileLedger, to(""))},
		{"records of another sandbox", "the ledger of the proposal belongs to sandbox",
			change(proposal.FileLedger, to(string(otherLedger)))},
		{"another sandbox", "the ledger of the proposal belongs to sandbox",
			func() { w.says(func(p *proposal.Proposal) { p.Sandbox = "0123456789ab" }) }},
		{"more records", "records, but the proposal states",
			func() { w.says(func(p *proposal.Proposal) { p.Ledger.Records += 1000 }) }},
		{"another snapshot", "no record in the ledger names the proposed snapshot",
			func() { w.says(func(p *proposal.Proposal) { p.Snapshot = "0123456789ab" }) }},
		{"another policy", "no record in the ledger names the policy",
			func() { w.says(func(p *proposal.Proposal) { p.Policy = "sha256:" + strings.Repeat("0", 64) }) }},
		{"another name", "belongs to sandbox",
			func() { w.says(func(p *proposal.Proposal) { p.Name, p.Branch = "other", "coppice/other" }) }},
		{"a name that is none", "invalid proposal",
			func() { w.says(func(p *proposal.Proposal) { p.Name = "\x1b[31mevil\x07" }) }},
		{"another branch", "invalid proposal", func() { w.says(func(p *proposal.Proposal) { p.Branch = "main" }) }},
		{"a base that is nowhere", "not found on a branch of",
			func() { w.says(func(p *proposal.Proposal) { p.Base = strings.Repeat("1", 40) }) }},
		{"a base of its own", "not found on a branch of",
			func() { w.says(func(p *proposal.Proposal) { p.Base, p.Start = good[branchRef], good[branchRef] }) }},
		{"a start elsewhere", "its only parent must be the base",
			func() { w.says(func(p *proposal.Proposal) { p.Start = good[branchRef] }) }},
		{"no files", "is missing in the proposal", func() { w.forge(map[string]string{proposal.FileProposal: "{}\n"}, nil) }},
		{"one file more", "unknown file", change("evil\x1b[31m", to("x"))},
		{"a link", "is not a record: it has entries other than plain files", func() {
			files := w.tree(proposalRef)
			files[proposal.FilePolicy] = "/etc/passwd"
			w.forge(files, map[string]string{proposal.FilePolicy: "120000"})
		}},
		{"a huge policy", proposal.FilePolicy + " of the proposal is too large: 5242880 bytes",
			change(proposal.FilePolicy, to(strings.Repeat("x", 5<<20)))},
		{"a .git in the work", "git could not fetch fix-auth from origin", func() { work(w.nested(".git")) }},
		{"no proposal", "has no proposal", func() { w.bob.git(w.bare, "update-ref", "-d", proposalRef) }},
		{"a proposal that is a file", "fix-auth", func() {
			w.bob.git(w.bare, "update-ref", proposalRef, w.bob.git(w.bare, "rev-parse", main+":a.txt"))
		}},
	} {
		for ref, id := range good {
			w.bob.git(w.bare, "update-ref", ref, id)
		}
		c.do()
		w.bob.t = t
		t.Run(c.name, func(t *testing.T) {
			w.bob.t = t
			w.bob.refused(c.why, "git", "pull", "origin", "fix-auth")
		})
		w.bob.t = t
	}
	// A lax configuration of the user's git does not weaken the checks.
	for ref, id := range good {
		w.bob.git(w.bare, "update-ref", ref, id)
	}
	w.bob.git(w.bob.top, "config", "fetch.fsck.hasDotgit", "ignore")
	work(w.nested(".git"))
	w.bob.refused("check the fetched objects", "git", "pull", "origin", "fix-auth")
	// Names that are not valid are refused.
	for _, name := range []string{"../x", "a b", "*", "-x", "x\x1b[31m"} {
		w.bob.refused("", "git", "pull", "--", "origin", name)
	}
	// The refused pulls did not affect a valid one.
	for ref, id := range good {
		w.bob.git(w.bare, "update-ref", ref, id)
	}
	w.bob.git(w.bob.top, "update-ref", "refs/coppice/staging/origin/fix-auth/heads", main)
	w.bob.run("git", "pull", "origin", "fix-auth")
	if left := w.bob.git(w.bob.top, "for-each-ref", "refs/coppice/staging"); left != "" {
		t.Errorf("staging references are left: %s", left)
	}
}

// nested writes a tree to the remote that contains a directory with the given name.
func (w *travellers) nested(name string) (tree string) {
	w.bob.t.Helper()
	sub := w.write(map[string]string{"config": "[core]\n\tfsmonitor = touch /var/tmp/canary\n"}, nil)
	cmd := exec.Command("git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
	raw := "40000 " + name + "\x00"
	for i := 0; i < len(sub); i += 2 {
		raw += string([]byte{unhex(sub[i])<<4 | unhex(sub[i+1])})
	}
	cmd.Dir, cmd.Env, cmd.Stdin = w.bare, w.bob.env, strings.NewReader(raw)
	out, err := cmd.Output()
	if err != nil {
		w.bob.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func unhex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

// TestPull_VerifiesProposal checks that a pull finds problems that a proposal does not declare, and does not show
// text that the proposal could have left out.
func TestPull_VerifiesProposal(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	w.says(func(p *proposal.Proposal) {
		p.Marks, p.Stat.Marks, p.Commands, p.Ledger.Failed, p.Title = nil, 0, nil, 7, "harmless \x1b[2J\x07"
	})
	files := w.tree(proposalRef)
	files[proposal.FileReport], files[proposal.FilePatch] = "\x1b]0;all is well\x07 EVIL", "EVIL"
	w.forge(files, nil)
	out, said, err := w.bob.try("git", "pull", "fix-auth", "--json")
	var got wire.Received
	if err == nil {
		err = json.Unmarshal([]byte(out), &got)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if len(got.Marks) != 1 || got.Marks[0].Path != "Makefile" || strings.Contains(got.Report, "EVIL") ||
		!strings.Contains(got.Report, "Makefile") || !strings.Contains(got.Report, "echo two") {
		t.Errorf("%+v", got)
	}
	for _, what := range []string{"marks", "failed commands"} {
		if !strings.Contains(strings.Join(got.Differs, "\n"), what) {
			t.Errorf("the difference of its %s is not reported: %q", what, got.Differs)
		}
	}
	for _, args := range [][]string{{"git", "pull", "fix-auth"}, {"snapshot", "show", "origin/fix-auth"},
		{"diff", "origin/fix-auth"}, {"system", "verify", "origin/fix-auth"}} {
		if out, said, _ := w.bob.try(args...); strings.ContainsAny(out+said, "\x1b\x07") || strings.Contains(out, "EVIL") {
			t.Errorf("%q shows %q %q", args, out, said)
		}
	}
	w.bob.refused("--trust Makefile", "git", "apply", "origin/fix-auth")
	// Genuine records, but of work other than the proposed one.
	c := w.bob.git(w.bare, "commit-tree", "-p", branchRef, "-m", "more", branchRef+"^{tree}")
	w.bob.git(w.bare, "update-ref", branchRef, c)
	w.says(func(p *proposal.Proposal) { p.Work, p.Tip, p.Title = c, c, "t" })
	if out := w.bob.run("git", "pull", "fix-auth"); !strings.Contains(out,
		"no record of a proposal of this commit") {
		t.Errorf("the missing record is not reported: %q", out)
	}
}

// TestPush_RefusesChangedRemote checks that a push does not overwrite what another client pushed meanwhile.
func TestPush_RefusesChangedRemote(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	const changed = "the proposal on origin has changed since you last pushed or pulled it\n" +
		"hint: review it: coppice git pull origin fix-auth; then push again"
	foreign := w.bob.git(w.bare, "commit-tree", "-p", branchRef, "-m", "foreign", branchRef+"^{tree}")
	w.bob.git(w.bare, "update-ref", branchRef, foreign)
	before := w.bob.git(w.bare, "for-each-ref")
	w.alice.refused(changed, "git", "push", "fix-auth", "--trust-all")
	if now := w.bob.git(w.bare, "for-each-ref"); now != before {
		t.Errorf("the remote has %s", now)
	}
	// Bob has a sandbox of the same name, whose proposal does not continue alice's.
	w.bob.git(w.bare, "update-ref", branchRef, foreign+"^")
	w.bob.run("create", "fix-auth", "--repo", ".", "-q")
	w.bob.run("exec", "fix-auth", "--", "sh", "-ec", "cd "+w.bob.top+"; echo bob >bob.txt")
	w.bob.refused(changed, "git", "push", "fix-auth")
	w.bob.run("git", "pull", "fix-auth")
	w.bob.refused("origin has a proposal fix-auth by another author", "git", "push", "fix-auth")
	w.bob.run("git", "push", "fix-auth", "--replace")
	if w.bob.git(w.bare, "show", branchRef+":bob.txt") != "bob" {
		t.Error("the proposal was not replaced")
	}
	w.alice.refused(changed, "git", "push", "fix-auth", "--trust-all")
}

// TestPull_RequiresPushedBase checks that a pull refuses a proposal on a commit that was not pushed, names the fix,
// and succeeds once the commit is fetched.
func TestPull_RequiresPushedBase(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.alice.write("local.txt", "local\n")
	w.alice.git(w.alice.top, "add", "-A")
	w.alice.git(w.alice.top, "commit", "-qm", "local")
	w.work()
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	w.bob.refused("git fetch origin", "git", "pull", "fix-auth")
	w.alice.git(w.alice.top, "push", "-q", "origin", "HEAD:main")
	w.bob.refused("git fetch origin", "git", "pull", "fix-auth")
	w.bob.git(w.bob.top, "fetch", "-q", "origin", "main:refs/remotes/origin/main")
	w.bob.run("git", "pull", "fix-auth")
}

// TestPull_FailedFetchLeavesNothing covers a remote that lacks objects, and so closes the connection.
func TestPull_FailedFetchLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	packs, err := filepath.Glob(filepath.Join(w.bare, "objects/pack/*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packs { // unpack them, so that a single object can be removed
		moved := filepath.Join(w.bob.home, filepath.Base(p))
		if err := os.Rename(p, moved); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("sh", "-c", `git -C "$1" unpack-objects -q <"$2"`, "sh", w.bare, moved).
			CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	id := w.bob.git(w.bare, "rev-parse", branchRef+":Makefile")
	if err := os.Remove(filepath.Join(w.bare, "objects", id[:2], id[2:])); err != nil {
		t.Fatal(err)
	}
	w.bob.refused("git could not fetch fix-auth from origin", "git", "pull", "fix-auth")
}
