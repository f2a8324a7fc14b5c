//go:build linux

package gitwork

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
)

// insideGit runs inside: it prints the commit of HEAD, and then, if that has objects that BASE and HAVE do not, a
// bundle of them. After a rewind HAVE may be unknown inside, which the script checks.
const insideGit = `top=$1 base=$2 have=$3
command -v git >/dev/null 2>&1 || exit 69
cd "$top" || exit 66
at() { env -i PATH="$PATH" HOME="${HOME:-/}" LC_ALL=C GIT_NO_REPLACE_OBJECTS=1 git -c safe.directory='*' "$@"; }
head=$(at rev-parse -q --verify 'HEAD^{commit}') || exit 66
echo "$head"
[ -n "$base" ] || exit 0
if [ -z "$have" ] || ! at cat-file -e "$have^{commit}" 2>/dev/null; then have=$base; fi
new=$(at rev-list -n 1 "$head" "^$base" "^$have") || exit 65
[ -z "$new" ] || at bundle create - HEAD "^$base" "^$have"`

// Exit codes of insideGit, as in sysexits(3).
const (
	exitNoGit  = 69
	exitNoRepo = 66
	exitNoBase = 65
)

// collectTime is the time limit of git inside.
const collectTime = 10 * time.Minute

// takeTip exports the commits, and returns the commit of HEAD.
func (g *Git) takeTip(ctx context.Context, c *Collected, old repo.OID) (tip repo.OID, err error) {
	base := repo.OID(c.Rec.Repo.Base)
	err = g.gitInside(ctx, &c.Rec, []string{string(base), string(old)}, func(head repo.OID, bundle *bufio.Reader) error {
		tip = head
		var known []repo.OID
		if old != "" {
			known = []repo.OID{old}
		}
		if _, err := bundle.Peek(1); err == nil {
			got, err := c.Repo.Accept(ctx,
				repo.Accept{Bundle: bundle, Base: base, Have: known, To: gitrefs.Box(c.Rec.ID, TipRef), Old: old,
					Message: "coppice: taken out of " + c.Rec.Name})
			tip = got.Tip
			return err
		}
		given, err := c.Repo.Within(ctx, head, append(known, base)...)
		if err == nil && !given {
			err = fault.New(fault.Invalid, "invalid HEAD %s reported by the sandbox: it did not send the commit", head)
		}
		if err != nil {
			return err
		}
		return c.Repo.SetRef(ctx, gitrefs.Box(c.Rec.ID, TipRef), head, old, "coppice: taken out of "+c.Rec.Name)
	})
	return tip, err
}

// askHead returns the commit of HEAD.
func (g *Git) askHead(ctx context.Context, rec *meta.Sandbox) (head repo.OID, err error) {
	err = g.gitInside(ctx, rec, []string{"", ""}, func(h repo.OID, _ *bufio.Reader) error {
		head = h
		return nil
	})
	return head, err
}

// gitInside runs insideGit as an ordinary command, and calls take to read its output. An error of take stops it.
func (g *Git) gitInside(
	ctx context.Context, rec *meta.Sandbox, args []string, take func(head repo.OID, rest *bufio.Reader) error,
) error {
	pr, pw := io.Pipe()
	top, dir := rec.Repo.Top, "/"
	if rec.Tier == workspace {
		top, dir = ".", "" // commands start in the work tree
	}
	req := wire.ExecRequest{Cmd: append([]string{"/bin/sh", "-c", insideGit, "coppice", top}, args...), Dir: dir,
		TimeoutMS: collectTime.Milliseconds(), Label: "coppice: take out what was done",
		Capture: wire.Capture{Off: true}}
	out := &outlet{w: pw}
	var exit wire.Exit
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		exit, err = g.config.API.Exec(ctx, string(rec.ID), req, out.streams())
		pw.Close()
	}()
	br := bufio.NewReader(pr)
	head, terr := readHead(br)
	if terr == nil {
		terr = take(head, br)
	}
	pr.CloseWithError(errUnread)
	if id := out.id(); terr != nil && id != "" {
		cctx := context.WithoutCancel(ctx)
		if cerr := g.config.Work.CancelExec(cctx, string(rec.ID), id); cerr != nil && !fault.Is(cerr, fault.NotFound) {
			g.config.Log.Warn("could not cancel git in a sandbox", "sandbox", rec.Name, "err", cerr)
		}
	}
	<-ended
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case exit.Code != 0 && (terr == nil || !exit.TimedOut && exit.Signal == ""):
		return gitFailed(rec, exit, out.errorText())
	}
	return terr
}

// errUnread closes the pipe of a command whose output is no longer read.
var errUnread = errors.New("output is no longer read")

// readHead reads the first line.
func readHead(br *bufio.Reader) (repo.OID, error) {
	l, err := br.ReadSlice('\n')
	if err != nil {
		return "", fault.New(fault.Invalid, "git in the sandbox did not report HEAD").Because(err)
	}
	return repo.ParseOID(strings.TrimSuffix(string(l), "\n"))
}

// gitFailed returns the error for a failure of git inside.
func gitFailed(rec *meta.Sandbox, exit wire.Exit, said string) error {
	switch {
	case exit.Code == exitNoGit, exit.Code == 127, exit.Code == 126:
		return fault.New(fault.Unsupported, "git not found in sandbox %s", rec.Name).
			WithHint("install it: coppice exec %s --user root -- apt-get install git; or use a base that has it", rec.Name)
	case exit.Code == exitNoRepo:
		return fault.New(fault.Conflict, "%s in sandbox %s is no longer a repository with a commit", rec.Repo.Top, rec.Name).
			WithHint("rewind to a snapshot in which it was: coppice log %s, then coppice rewind %[1]s REF", rec.Name)
	case exit.Code == exitNoBase:
		return fault.New(fault.Conflict, "%s is no longer the repository that sandbox %s started with",
			rec.Repo.Top, rec.Name).
			WithHint("rewind to a snapshot in which it was: coppice log %s, then coppice rewind %[1]s REF", rec.Name)
	case exit.Limit != "":
		return fault.New(fault.Conflict, "git in sandbox %s reached the limit %s", rec.Name, exit.Limit).
			WithHint("raise the limit, or make smaller commits")
	case exit.TimedOut:
		return fault.New(fault.Conflict, "git in sandbox %s took longer than %s", rec.Name, collectTime)
	}
	f := fault.New(fault.Invalid, "git in sandbox %s failed with exit code %d", rec.Name, exit.Code)
	if said != "" {
		f = f.Because(errors.New(said))
	}
	return f.WithHint("check the repository: coppice exec %s -- git -C %s fsck", rec.Name, rec.Repo.Top)
}

// outlet receives the frames of a command: its output goes to a pipe, and the beginning of its stderr is kept.
type outlet struct {
	w *io.PipeWriter

	mu   sync.Mutex
	exec string // guarded by mu
	said []byte // guarded by mu
}

// streams connects a command to o. Its stdin is empty.
func (o *outlet) streams() client.Streams {
	return client.Streams{Stdout: o.w, Stderr: o, Started: o.started}
}

func (o *outlet) started(x wire.Started) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exec = x.Exec
}

// Write keeps the beginning of stderr.
func (o *outlet) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said = append(o.said, p[:min(len(p), max(0, maxSaid-len(o.said)))]...)
	return len(p), nil
}

// maxSaid is the maximum size of git's stderr in an error, in bytes.
const maxSaid = 1 << 10

func (o *outlet) id() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.exec
}

// errorText returns the beginning of stderr, as one line without control bytes.
func (o *outlet) errorText() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(strings.Fields(message.Clean(string(o.said))), " ")
}
