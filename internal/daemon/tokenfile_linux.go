package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// tokenEvery is the time between two looks at the token file.
const tokenEvery = 5 * time.Second

// maxTokenFile is the maximum size of a token file, in bytes.
const maxTokenFile = 4 << 10

// tokenFile makes the secret in a file the configured token.
type tokenFile struct {
	name    string
	private []string // directories of the host that sandboxes do not see; see unseen
	owner   int      // uid that may own the file besides root; -1: owners are not known
	tokens  *auth.Configured
	drop    func(id string) // ends the requests of a replaced token
	log     *slog.Logger
}

// unseen returns the directories that no sandbox from the host sees: the home, and those that each sandbox has for
// itself.
func unseen(home string) ([]string, error) {
	where, err := filepath.EvalSymlinks(home)
	return append([]string{where}, rootspec.Reserved...), fault.Wrap(err, "find the home")
}

// load reads the file. On an error, no token is configured.
func (f *tokenFile) load(ctx context.Context) error {
	secret, err := f.read()
	ended, serr := f.tokens.Set(ctx, secret, time.Now())
	if ended != "" {
		f.drop(ended)
	}
	if err == nil && serr != nil {
		err = fault.Wrap(serr, "read the token file %s", f.name)
	}
	return err
}

// watch loads the file again and again until ctx ends. It logs changes from and to an error, once.
func (f *tokenFile) watch(ctx context.Context) {
	t := time.NewTicker(tokenEvery)
	defer t.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		err := f.load(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && err.Error() != failed:
			failed = err.Error()
			f.log.Error("no token is configured", "err", err)
		case err == nil && failed != "":
			failed = ""
			f.log.Info("the token file is valid again", "file", f.name)
		}
	}
}

// read returns the secret in the file, without white space around it. The secret may still be malformed. Errors quote
// nothing of the content.
func (f *tokenFile) read() (string, error) {
	file, err := os.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		e := &fault.Error{Kind: fault.KindOf(err), Message: "read the token file", Err: err}
		if errors.Is(err, fs.ErrNotExist) {
			e.Hint = "write a token to it: coppice token generate"
		}
		return "", e
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return "", fault.Wrap(err, "read the token file %s", f.name)
	}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd())) // where links lead
	if err != nil {
		return "", fault.Wrap(err, "find the token file %s", f.name)
	}
	dir, err := os.Stat(filepath.Dir(where))
	if err != nil {
		return "", fault.Wrap(err, "find the token file %s", f.name)
	}
	if err := safeToken(where, st, dir, f.private, f.owner); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	switch b = bytes.TrimSpace(b); {
	case err != nil:
		return "", fault.Wrap(err, "read the token file %s", f.name)
	case len(b) == 0:
		return "", fault.New(fault.Invalid, "the token file %s is empty", f.name).
			WithHint("write a token to it: coppice token generate")
	case len(b) > maxTokenFile:
		return "", fault.New(fault.Invalid, "the token file %s is larger than %d bytes", f.name, maxTokenFile).
			WithHint("it must contain one token: coppice token generate")
	}
	return string(b), nil
}

// safeToken refuses a token file that others could replace, or that a sandbox could read: one whose base is the host
// sees the host's files outside the directories private, those of root, too. path has no links; file and dir are the
// states of the file and its directory. Mode 0444 is what Docker gives secrets, in /run/secrets. Both must belong to
// root, as secrets of Kubernetes do whatever fsGroup is, or to the user owner; -1: the daemon is in a user namespace,
// where the owner of a secret that root mounted is not known.
func safeToken(path string, file, dir fs.FileInfo, private []string, owner int) error {
	owned := func(i fs.FileInfo) bool {
		st, ok := i.Sys().(*syscall.Stat_t)
		return ok && (owner < 0 || st.Uid == 0 || int(st.Uid) == owner)
	}
	switch {
	case !file.Mode().IsRegular():
		return fault.New(fault.Invalid, "the token file %s is not a regular file", path).
			WithHint("write a token to a file: coppice token generate")
	case file.Mode().Perm()&0o022 != 0:
		return fault.New(fault.Denied, "other users can replace the token in %s", path).
			WithHint("make it private: chmod 0400 %s", path)
	case dir.Mode().Perm()&0o002 != 0:
		return fault.New(fault.Denied, "every user can create files beside the token in %s", path).
			WithHint("move it to a private directory, such as /run/secrets")
	case !owned(file), !owned(dir):
		return fault.New(fault.Denied, "the token file %s or its directory belongs to another user", path).
			WithHint("let it and its directory belong to root or to the daemon's user: chown root %s", path)
	}
	if slices.ContainsFunc(private, func(dir string) bool { return rootspec.Within(path, dir) }) {
		return nil
	}
	return fault.New(fault.Denied, "sandboxes from the host could read the token in %s", path).
		WithHint("move it to a directory that each sandbox has for itself, such as /run/secrets")
}
