package meta

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestPolicies_AreKeptWhileReferenced checks that a sandbox cannot name a policy that is
// missing, and that gc removes policies that no sandbox names.
func TestPolicies_AreKeptWhileReferenced(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := must(Open(ctx, filepath.Join(t.TempDir(), "meta.db")))(t)
	defer d.Close()
	create := func(id, policy, text string) error {
		first := timeline.Snapshot{ID: timeline.SnapshotID(id + "first0"), Sandbox: timeline.SandboxID(id),
			Cause: timeline.CauseImport, Created: time.Now()}
		rec := Sandbox{ID: timeline.SandboxID(id), Name: id, Created: time.Now(), Head: first.ID, MountTop: first.ID, Gen: 1,
			PolicyText: text}
		rec.Policy = policy
		return d.CreateSandbox(ctx, rec, first)
	}
	if err := create("none", "sha256:a", ""); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a missing policy: %v", err)
	}
	ok(t, create("one", "sha256:a", "A"))
	ok(t, create("two", "sha256:a", ""))
	ok(t, create("three", "", ""))
	is := func(digest, want string) {
		t.Helper()
		if got, err := d.Policy(ctx, digest); got != want || (err != nil) != (want == "") || err != nil &&
			!fault.Is(err, fault.Corrupt) {
			t.Errorf("%s is %q, %v; want %q", digest, got, err, want)
		}
	}
	is("sha256:a", "A")
	ok(t, d.UpdateSandbox(ctx, "one", func(r *Sandbox) error { r.Policy, r.PolicyText = "sha256:b", "B"; return nil }))
	if err := d.UpdateSandbox(ctx, "one",
		func(r *Sandbox) error { r.Policy = "sha256:c"; return nil }); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a change to a missing policy: %v", err)
	}
	must(d.DropUnreferenced(ctx, ""))(t)
	is("sha256:a", "A")
	is("sha256:b", "B")
	must(d.DeleteSandbox(ctx, "two"))(t)
	is("sha256:a", "A")
	must(d.DropUnreferenced(ctx, ""))(t)
	is("sha256:a", "")
	is("sha256:b", "B")
	// The origins of a policy are kept too; a record can do without them.
	ok(t, d.UpdateSandbox(ctx, "one", func(r *Sandbox) error { r.Origins, r.OriginsText = "sha256:o", "O"; return nil }))
	must(d.DropUnreferenced(ctx, ""))(t)
	is("sha256:o", "O")
	is("sha256:b", "B")
	ok(t, d.UpdateSandbox(ctx, "one", func(r *Sandbox) error { r.Origins = "sha256:p"; return nil }))
	if rec := must(d.Sandbox(ctx, "one"))(t); rec.Origins != "" || rec.OriginsText != "" {
		t.Errorf("%+v", rec)
	}
	must(d.DropUnreferenced(ctx, ""))(t)
	is("sha256:o", "")
	if rec := must(d.Sandbox(ctx, "one"))(t); rec.Policy != "sha256:b" || rec.PolicyText != "" {
		t.Errorf("%+v", rec)
	}
}
