package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// engine has all roles.
type engine interface {
	httpapi.Sandboxes
	httpapi.DiskMeter
	httpapi.Power
	httpapi.Commands
	httpapi.History
	httpapi.Moves
	httpapi.Feed
	httpapi.FileOpener
	httpapi.Network
	httpapi.Secrets
	httpapi.PortDialer
	httpapi.Records
	httpapi.SignedLog
	httpapi.Repositories
	httpapi.Proposals
	httpapi.LayerTravel
}

// roles returns Roles that e implements.
func roles(e engine) httpapi.Roles {
	return httpapi.Roles{
		Sandboxes:    e,
		DiskMeter:    e,
		Power:        e,
		Commands:     e,
		History:      e,
		Moves:        e,
		Feed:         e,
		FileOpener:   e,
		Network:      e,
		Secrets:      e,
		PortDialer:   e,
		Records:      e,
		SignedLog:    e,
		Repositories: e,
		Proposals:    e,
		LayerTravel:  e,
	}
}

// fake is an engine that records its calls and returns preset results.
type fake struct {
	engine // a call of a method that fake does not implement panics

	err      error  // returned by every call
	text     string // content of every file
	filesErr error  // returned by file operations
	exec     func(ctx context.Context, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)

	mu    sync.Mutex
	calls []string // guarded by mu
}

func (f *fake) did(what string, args ...any) {
	b, _ := json.Marshal(args)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, what+string(b))
}

func (f *fake) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		return ""
	}
	return f.calls[len(f.calls)-1]
}

func (f *fake) Create(_ context.Context, req wire.CreateRequest, progress func(wire.Progress)) (wire.Sandbox, error) {
	var n int64
	if req.Tar != nil {
		progress(wire.Progress{Phase: "import", Unit: "bytes"})
		var err error
		if n, err = io.Copy(io.Discard, req.Tar); err != nil {
			return wire.Sandbox{}, fault.New(fault.Invalid, "read the archive").Because(err)
		}
		progress(wire.Progress{Phase: "import", Unit: "bytes", Done: n, Note: "a note"})
	}
	f.did("create", req, n)
	return wire.Sandbox{Name: req.Name, ID: "0123456789ab"}, f.err
}

func (f *fake) Policy(_ context.Context, name string) (wire.PolicyResult, error) {
	f.did("policy", name)
	return wire.PolicyResult{Digest: "sha256:0"}, f.err
}

func (f *fake) List(context.Context) ([]wire.Sandbox, error) {
	return []wire.Sandbox{{Name: "a", State: wire.StateLive}, {Name: "b", State: wire.StateIdle,
		Labels: map[string]string{"team": "web,%&+x"}}}, f.err
}

func (f *fake) Status(_ context.Context, name string) (wire.StatusResult, error) {
	f.did("status", name)
	return wire.StatusResult{Sandbox: wire.Sandbox{Name: name}}, f.err
}

func (f *fake) Remove(_ context.Context, names []string, force bool) ([]string, error) {
	f.did("remove", names, force)
	return names, f.err
}

func (f *fake) Start(_ context.Context, name string) (wire.StatusResult, error) {
	f.did("start", name)
	return wire.StatusResult{Sandbox: wire.Sandbox{Name: name}}, f.err
}

func (f *fake) Pause(_ context.Context, name string) (wire.Sandbox, error) {
	f.did("pause", name)
	return wire.Sandbox{Name: name, Paused: true}, f.err
}

func (f *fake) Resume(_ context.Context, name string) (wire.Sandbox, error) {
	f.did("resume", name)
	return wire.Sandbox{Name: name}, f.err
}

func (f *fake) CommitMemory(_ context.Context, name, message string) (wire.CommitResult, error) {
	f.did("commit-memory", name, message)
	return wire.CommitResult{Node: "bb", Changed: true, Memory: &wire.Memory{Image: "2", Size: 3, Added: 4}}, f.err
}

func (f *fake) Stop(_ context.Context, name string) (wire.StopResult, error) {
	f.did("stop", name)
	return wire.StopResult{Stopped: 2}, f.err
}

func (f *fake) Probe(context.Context) (wire.ProbeReport, error) {
	return wire.ProbeReport{Kernel: "6.18", Items: []wire.ProbeItem{{Name: "x", OK: true}}}, f.err
}

func (f *fake) Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	f.did("exec", name, req)
	if f.exec == nil {
		return wire.Exit{}, f.err
	}
	return f.exec(ctx, req, stream)
}

func (f *fake) Log(_ context.Context, name string) (wire.LogResult, error) {
	f.did("log", name)
	return wire.LogResult{Nodes: []wire.Snapshot{{ID: "aa"}}, Head: "aa", Rows: []wire.LogRow{{Graph: "*", Node: "aa"}}},
		f.err
}

func (f *fake) Head(_ context.Context, name string) (string, error) {
	f.did("head", name)
	return "aa", f.err
}

func (f *fake) Branches(_ context.Context, name string) (wire.BranchesResult, error) {
	f.did("branches", name)
	return wire.BranchesResult{Head: "aa"}, f.err
}

func (f *fake) Show(_ context.Context, name, ref string) (wire.ShowResult, error) {
	f.did("show", name, ref)
	return wire.ShowResult{Snapshot: wire.Snapshot{ID: "aa"},
		Changes: []wire.Change{wire.NewChange(wire.Added, "/a\xff")}}, f.err
}

func (f *fake) Diff(_ context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error) {
	f.did("diff", name, req)
	return wire.DiffResult{A: "aa"}, f.err
}

func (f *fake) Patch(_ context.Context, name string, req wire.DiffRequest, w io.Writer) error {
	f.did("patch", name, req)
	if req.A != "early" {
		if _, err := io.WriteString(w, "--- a\n+++ b\n"); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fake) GitDiff(_ context.Context, name string, req wire.GitDiffRequest) (wire.GitDiff, error) {
	f.did("gitDiff", name, req)
	return wire.GitDiff{Tip: "aa"}, f.err
}

func (f *fake) GitPatch(_ context.Context, name string, req wire.GitDiffRequest, w io.Writer) error {
	f.did("gitPatch", name, req)
	if req.Work != "early" {
		if _, err := io.WriteString(w, "diff --git a/a b/a\n"); err != nil {
			return err
		}
	}
	return f.err
}

func (f *fake) GitApply(_ context.Context, name string, req wire.GitApplyRequest) (wire.GitApplied, error) {
	f.did("gitApply", name, req)
	return wire.GitApplied{Way: req.Way}, f.err
}

func (f *fake) Mark(_ context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error) {
	f.did("mark", name, req)
	return wire.CommitResult{Node: "bb"}, f.err
}

func (f *fake) Commit(_ context.Context, name, message string) (wire.CommitResult, error) {
	f.did("commit", name, message)
	return wire.CommitResult{Node: "bb", Head: "bb"}, f.err
}

func (f *fake) Run(_ context.Context, name string, req wire.RunRequest) (wire.Run, error) {
	f.did("run", name, req.Cmd)
	return wire.Run{RunRequest: req, Exec: "x1"}, f.err
}

func (f *fake) Checkout(_ context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	f.did("checkout", name, req)
	return wire.MoveResult{Head: req.Node, InPlace: req.InPlace}, f.err
}

func (f *fake) Undo(_ context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error) {
	f.did("undo", name, req)
	return wire.MoveResult{Head: "aa"}, f.err
}

func (f *fake) Redo(_ context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error) {
	f.did("redo", name, req)
	return wire.MoveResult{Head: "aa"}, f.err
}

func (f *fake) DeleteSnapshot(_ context.Context, name, ref string) (string, error) {
	f.did("delete", name, ref)
	return "aa", f.err
}

func (f *fake) Tags(_ context.Context, name string) (map[string]string, error) {
	f.did("tags", name)
	return map[string]string{"good": "aa"}, f.err
}

func (f *fake) SetTag(_ context.Context, name, tag, ref string) (wire.TagResult, error) {
	f.did("settag", name, tag, ref)
	return wire.TagResult{Name: tag, Node: "aa"}, f.err
}

func (f *fake) DeleteTag(_ context.Context, name, tag string) error {
	f.did("deltag", name, tag)
	return f.err
}

func (f *fake) GC(_ context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error) {
	f.did("gc", req)
	progress(wire.Progress{Phase: "gc"})
	return wire.GCResult{DryRun: req.DryRun}, f.err
}

func (f *fake) DiskUse(_ context.Context, progress func(wire.Progress)) (wire.DiskUse, error) {
	f.did("diskUse")
	progress(wire.Progress{Phase: "measure"})
	return wire.DiskUse{Bytes: 1}, f.err
}

func (f *fake) Verify(_ context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error) {
	f.did("verify", name)
	progress(wire.Progress{Phase: "verify", Done: 1, Total: 2})
	return wire.VerifyResult{Layers: 2}, f.err
}

func (f *fake) Fork(_ context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	f.did("fork", name, req)
	return wire.ForkResult{Sandboxes: []wire.Sandbox{{Name: "c"}}}, f.err
}

func (f *fake) Tournament(
	_ context.Context, name string, req wire.TournamentRequest, progress func(wire.Progress),
) (wire.TournamentResult, error) {
	f.did("tournament", name, req)
	for i := range req.Candidates { // faster than other progress is reported
		progress(wire.Progress{Phase: "tournament", Done: int64(i + 1),
			Branch: &wire.TournamentBranch{Name: req.Candidates[i].Name}})
	}
	return wire.TournamentResult{Winner: "one"}, f.err
}

func (f *fake) Net(_ context.Context, name string, req wire.NetRequest) (wire.NetResult, error) {
	f.did("net", name, req)
	return wire.NetResult{Now: &wire.NetNow{Conns: 1}}, f.err
}

func (f *fake) FollowNet(_ context.Context, name string, req wire.NetRequest, yield func(wire.NetEvent) error) error {
	f.did("follownet", name, req)
	if f.err != nil {
		return f.err
	}
	for _, kind := range []string{"", wire.NetDNS, wire.NetDeny} {
		if err := yield(wire.NetEvent{Kind: kind, Name: "a\nb"}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) Why(_ context.Context, name string, req wire.WhyRequest) (wire.WhyResult, error) {
	f.did("why", name, req)
	return wire.WhyResult{Verdict: "deny"}, f.err
}

func (f *fake) Allow(_ context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error) {
	f.did("allow", name, req)
	return wire.AllowResult{Policy: "sha256:0"}, f.err
}

func (f *fake) ListGrants(_ context.Context, name string) (wire.GrantsResult, error) {
	f.did("listgrants", name)
	return wire.GrantsResult{Grants: []wire.Grant{{Name: "g"}}}, f.err
}

func (f *fake) GiveGrant(_ context.Context, name, grant string, spec wire.GrantSpec) (wire.Grant, error) {
	f.did("givegrant", name, grant, spec)
	return wire.Grant{Name: grant}, f.err
}

func (f *fake) RevokeGrant(_ context.Context, name, grant string) error {
	f.did("revokegrant", name, grant)
	return f.err
}

func (f *fake) ListConsents(context.Context) (wire.ConsentsResult, error) {
	f.did("listconsents")
	return wire.ConsentsResult{Consents: []wire.Consent{{Digest: "sha256:0"}}}, f.err
}

func (f *fake) Consent(_ context.Context, req wire.ConsentRequest) (wire.ConsentsResult, error) {
	f.did("consent", req)
	return wire.ConsentsResult{Consents: []wire.Consent{{Digest: "sha256:0"}}}, f.err
}

func (f *fake) RevokeConsent(_ context.Context, digest string) error {
	f.did("revokeconsent", digest)
	return f.err
}

func (f *fake) Asking(_ context.Context, name string) (wire.NetAsking, error) {
	f.did("asking", name)
	return wire.NetAsking{Asking: []wire.NetQuestion{{Place: "a.example"}}}, f.err
}

func (f *fake) Approve(_ context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	f.did("approve", name, req)
	return wire.AnswerResult{AllowResult: wire.AllowResult{Policy: "sha256:0"},
		Settled: []wire.NetQuestion{{Place: "a.example"}}}, f.err
}

func (f *fake) Deny(_ context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	f.did("deny", name, req)
	return wire.AnswerResult{AllowResult: wire.AllowResult{Policy: "sha256:1"}}, f.err
}
