//go:build linux

package gitwork

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// insideRebase runs inside: it rebases what HEAD has and OLD does not onto NEW, and prints the paths with conflicts,
// each followed by a zero byte. A HEAD that is not based on OLD, as after a checkout of a snapshot from before an
// earlier rebase, is rebased from its merge base with NEW.
const insideRebase = `top=$1 new=$2 old=$3 name=$4 email=$5
command -v git >/dev/null 2>&1 || exit 69
cd / && [ -d "$top" ] || exit 66
at() { git -c safe.directory='*' -C "$top" "$@"; }
at rev-parse -q --verify 'HEAD^{commit}' >/dev/null || exit 66
at cat-file -e "$new^{commit}" 2>/dev/null || exit 65
at merge-base --is-ancestor "$old" HEAD 2>/dev/null || old=$new
at config user.name >/dev/null || { GIT_COMMITTER_NAME=$name; export GIT_COMMITTER_NAME; }
at config user.email >/dev/null || { GIT_COMMITTER_EMAIL=$email; export GIT_COMMITTER_EMAIL; }
GIT_EDITOR=: GIT_SEQUENCE_EDITOR=: at rebase --autostash --onto "$new" "$old" >&2
code=$?
at diff --name-only --diff-filter=U -z
exit $code`

// wasRef holds a commit that a sandbox was based on before a rebase: its older snapshots need it.
func wasRef(id timeline.SandboxID, commit string) repo.Ref { return gitrefs.Box(id, "was", commit) }

// Rebase rebases the changes of a sandbox in its repository onto another commit, with the git inside. If that fails,
// the sandbox is rewound, unless conflicts are to be kept. Conflict: processes run in the sandbox, or the rebase has
// conflicts. Forks of the sandbox keep their base.
func (g *Git) Rebase(ctx context.Context, name string, req wire.RebaseRequest) (res wire.Rebased, err error) {
	rec, err := g.config.Work.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	r, err := g.config.Work.Repository(ctx, &rec)
	if err != nil {
		return res, err
	}
	s := g.of(rec.ID)
	done, err := s.takes(ctx) // no export runs meanwhile
	if err != nil {
		return res, err
	}
	defer done()
	b := &rebasing{g: g, rec: rec, repo: r}
	if err := b.aim(ctx, req.Onto); err != nil {
		return res, err
	}
	if err := b.keepPresent(ctx); err != nil {
		return res, err
	}
	if err := b.run(ctx); err != nil {
		return res, errors.Join(err, b.goBack(ctx))
	}
	if len(b.paths) > 0 && !req.KeepConflicts {
		return res, errors.Join(b.conflict(), b.goBack(ctx))
	}
	s.last = nil // the last export is based on the old base
	return b.settle(ctx)
}

// rebasing is a rebase in progress.
type rebasing struct {
	g    *Git
	rec  meta.Sandbox
	repo *repo.Repo

	onto   repo.OID
	from   string // the branch with the tip onto, by its short name, or ""
	before timeline.SnapshotID
	paths  []string // paths with conflicts
}

// aim determines the new base.
func (b *rebasing) aim(ctx context.Context, onto string) (err error) {
	have := b.rec.Repo
	if have.Start != have.Base {
		return fault.New(fault.Unsupported,
			"cannot rebase sandbox %s: it started from uncommitted changes", b.rec.Name).
			WithHint("commit them, create another sandbox and apply the changes of this one there: coppice diff %s", b.rec.Name)
	}
	if onto == "" && have.From == "" {
		return fault.New(fault.Invalid, "sandbox %s did not start from the tip of a branch", b.rec.Name).
			WithHint("name the new base: coppice git rebase %s --onto REV", b.rec.Name)
	}
	rev := onto
	if rev == "" {
		rev = "refs/heads/" + have.From
	}
	if b.onto, err = b.repo.Commit(ctx, rev); err != nil {
		return err
	}
	b.from = have.From
	if onto == "" {
		return nil
	}
	b.from = ""
	ref, err := repo.ParseBranch(onto)
	if err != nil {
		return nil //nolint:nilerr // it is another kind of revision
	}
	refs, err := b.repo.Refs(ctx, ref)
	if refs[ref] == b.onto {
		b.from = onto
	}
	return err
}

// keepPresent takes a snapshot of a sandbox without running processes.
func (b *rebasing) keepPresent(ctx context.Context) error {
	procs, err := b.g.config.Work.Running(ctx, b.rec.ID)
	if err != nil {
		return err
	}
	if procs > 0 {
		return fault.New(fault.Conflict, "cannot rebase sandbox %s: processes are running in it", b.rec.Name).
			WithHint("wait until they exit (coppice process ls %s), or stop them: coppice stop %[1]s", b.rec.Name)
	}
	kept, err := b.g.config.API.Commit(ctx, string(b.rec.ID), "before a rebase")
	b.before = timeline.SnapshotID(kept.Head)
	return err
}

// run makes the sandbox's git rebase. It first holds the new base in the repository.
func (b *rebasing) run(ctx context.Context) error {
	if err := b.g.config.Work.HoldBase(ctx, b.repo, b.onto); err != nil {
		return err
	}
	who := Person(ctx, b.repo)
	out := &listener{}
	x, err := b.g.config.API.Exec(ctx, string(b.rec.ID), wire.ExecRequest{
		Cmd: []string{"/bin/sh", "-c", insideRebase, "coppice", b.rec.Repo.Top, string(b.onto), b.rec.Repo.Base,
			who.Name, who.Email},
		Dir: "/", TimeoutMS: collectTime.Milliseconds(), Label: "coppice: rebase",
		Capture: wire.Capture{Off: true},
	}, out.streams())
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case x.Code == exitNoBase:
		return fault.New(fault.Conflict, "commit %[2]s not found in sandbox %[1]s", b.rec.Name, b.onto).
			WithHint("create another sandbox from it: coppice create --at %s", b.onto[:12])
	}
	list, said := out.results()
	for p := range strings.SplitSeq(list, "\x00") {
		if p != "" {
			b.paths = append(b.paths, proposal.Path(p))
		}
	}
	b.paths = slices.Compact(b.paths)
	if x.Code != 0 && len(b.paths) == 0 {
		return b.failed(x, said)
	}
	return nil
}

// failed returns the error for a git process that did not start, or failed.
func (b *rebasing) failed(x wire.Exit, said string) error {
	if x.Code == exitNoGit || x.Code == exitNoRepo || x.TimedOut || x.Limit != "" {
		return gitFailed(&b.rec, x, said)
	}
	return fault.New(fault.Conflict, "git in sandbox %s could not rebase it: %s", b.rec.Name, said).
		WithHint("the sandbox was not changed; fix what git reports: coppice shell %s", b.rec.Name)
}

// conflict returns the error that lists the conflicts.
func (b *rebasing) conflict() error {
	return fault.New(fault.Conflict, "the rebase has conflicts").Because(&repo.Conflicts{Paths: b.paths}).
		WithHint("the sandbox was not changed; to resolve them in it: coppice git rebase %s --keep-conflicts", b.rec.Name)
}

// goBack rewinds the sandbox. Its state is kept in its history.
func (b *rebasing) goBack(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err := b.g.config.API.Checkout(ctx, string(b.rec.ID), wire.CheckoutRequest{Node: string(b.before)})
	return errors.Join(fault.Wrap(err, "rewind sandbox %s to snapshot %s after a failed rebase", b.rec.Name, b.before),
		b.g.config.Work.ReleaseBase(ctx, b.repo, b.onto))
}

// settle records the new base.
func (b *rebasing) settle(ctx context.Context) (res wire.Rebased, err error) {
	ctx = context.WithoutCancel(ctx)
	old, moved := b.rec.Repo.Base, b.rec.Repo.Base != string(b.onto)
	if moved {
		was := wasRef(b.rec.ID, old)
		if refs, err := b.repo.Refs(ctx, was); err != nil {
			return res, err
		} else if refs[was] == "" {
			if err := b.repo.SetRef(ctx, was, repo.OID(old), "", "coppice: sandbox "+b.rec.Name+" started here"); err != nil {
				return res, err
			}
		}
	}
	book := b.g.config.Book
	said := audit.ByDaemon(&format.Rebase{
		From: old, To: string(b.onto), Snapshot: string(b.before), Conflicts: int64(len(b.paths)),
	})
	err = book.Do(ctx, book.Drafts(ctx, &b.rec, said...), func(ctx context.Context) error {
		return b.g.config.Work.UpdateSandbox(ctx, b.rec.ID, func(r *meta.Sandbox) error {
			to := *r.Repo
			to.Base, to.Start, to.From = string(b.onto), string(b.onto), b.from
			r.Repo = &to
			return nil
		})
	})
	if err != nil {
		return res, err
	}
	if b.rec, err = b.g.config.Work.Sandbox(ctx, string(b.rec.ID)); err != nil {
		return res, err
	}
	res = wire.Rebased{Repo: *WireRepo(b.rec.Repo), Old: old, Before: string(b.before), Head: string(b.rec.Head),
		Moved: moved, Conflicts: b.paths}
	return res, b.g.config.Work.ReleaseBase(ctx, b.repo, repo.OID(old))
}

// listener keeps the output of a command, up to a limit, and the end of its stderr.
type listener struct {
	mu   sync.Mutex
	list bytes.Buffer // guarded by mu
	said tail.Tail    // guarded by mu
}

// maxList is the maximum size of a command's output that is kept, in bytes.
const maxList = 1 << 20

// streams connects a command to l. Its stdin is empty.
func (l *listener) streams() client.Streams {
	return client.Streams{Stdout: taker(l.output), Stderr: taker(l.complaint)}
}

// taker is an io.Writer that never fails.
type taker func(p []byte)

// Write calls take with p.
func (take taker) Write(p []byte) (int, error) {
	take(p)
	return len(p), nil
}

func (l *listener) output(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list.Write(p[:min(len(p), maxList-l.list.Len())])
}

func (l *listener) complaint(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said.Add(p)
}

// results returns the output, and the end of stderr as one line without control bytes.
func (l *listener) results() (list, said string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list.String(), message.Clean(strings.Join(strings.Fields(tail.Lines(string(l.said))), " "))
}
