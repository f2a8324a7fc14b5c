package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// unmapped is the owner that a user namespace shows for ids that it does not map (proc_sys_kernel(5), overflowuid).
const unmapped = 65534

// findRuntime returns the absolute path, without links, of an OCI runtime. A name is looked up in the directories of
// search, a PATH. The keeper of a sandbox executes the file with the rights of the daemon's user, so neither another
// user nor a group may be able to replace or write it: file and directories belong to root or to the daemon's user. A
// daemon in a user namespace, which is blind, cannot distinguish root from other users who are not mapped there; it
// trusts those who own the directories in its PATH.
func findRuntime(name, search string, blind bool) (string, error) {
	if filepath.Base(name) == "krun" { // a link to crun, which starts a virtual machine if it is called by that name
		return "", fault.New(fault.Unsupported, "OCI runtime krun starts a virtual machine: it cannot inherit descriptors").
			WithHint("use --runtime crun, or --tier gvisor")
	}
	at := name
	if !filepath.IsAbs(name) {
		at = ""
		for _, dir := range append(filepath.SplitList(search), "/usr/local/sbin", "/usr/sbin", "/sbin") {
			file := filepath.Join(dir, name)
			if st, err := os.Stat(file); filepath.IsAbs(dir) && err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				at = file
				break
			}
		}
		if at == "" {
			return "", errNoRuntime(name)
		}
	}
	real, err := filepath.EvalSymlinks(at)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoRuntime(name)
	}
	if err != nil {
		return "", fault.Wrap(err, "find the OCI runtime %s", name)
	}
	// Also on a file system that is mounted noexec: the keeper would execute a copy of it.
	if err := unix.Faccessat(unix.AT_FDCWD, real, unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", fault.New(fault.Invalid, "the OCI runtime %s cannot be executed", real).Because(err).
			WithHint("choose another with --runtime, or see which work: coppice system probe")
	}
	for p := real; ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return "", fault.Wrap(err, "find the OCI runtime %s", name)
		}
		if p == real && st.Mode&unix.S_IFMT != unix.S_IFREG {
			return "", fault.New(fault.Invalid, "the OCI runtime %s is not a regular file", real).
				WithHint("choose another with --runtime")
		}
		if why := writable(st, os.Getuid(), blind); why != "" {
			return "", fault.New(fault.Denied, "the OCI runtime %s is not used: %s %s", real, p, why).
				WithHint("use one in a directory of root's: coppice create --tier container --runtime runc; see which work: " +
					"coppice system probe")
		}
		if p == "/" {
			return real, nil
		}
	}
}

// writable returns why users other than root and uid could write a file, or replace files in a directory; "" if they
// cannot. With blind, what belongs to an unmapped user is taken for root's.
func writable(st unix.Stat_t, uid int, blind bool) string {
	switch {
	case st.Uid != 0 && int(st.Uid) != uid && (st.Uid != unmapped || !blind):
		return "belongs to another user"
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return "can be written by others"
	case st.Mode&0o022 != 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "can be written by others"
	}
	return ""
}

func errNoRuntime(name string) error {
	err := fault.New(fault.Unsupported, "OCI runtime %s not found", name)
	if filepath.IsAbs(name) {
		return err.WithHint("name one that is in a directory of programs: coppice create --tier container --runtime runc; " +
			"see which work: coppice system probe")
	}
	return err.WithHint("install it: sudo apt-get install %s; or choose another: coppice create --tier container "+
		"--runtime PATH", name)
}

// blind reports whether a daemon runs in a user namespace that maps only its user; c is that user.
func blind(c plan.Caller) bool { return !c.Root && !c.Unmapped }

// workedRuntimes are the files with which a sandbox of tier container has started. Methods may be called concurrently.
type workedRuntimes struct {
	mu   sync.Mutex
	seen map[fileVersion]bool // guarded by mu
}

// fileVersion identifies the content of a file: a write or a replacement changes its inode, size or change time.
type fileVersion struct {
	path          string
	dev, ino      uint64
	size          int64
	changed, nano int64
}

func versionOf(path string) (fileVersion, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return fileVersion{path, st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec}, err
}

// tryRuntime starts and stops a sandbox of tier container with an OCI runtime, unless the same file has worked before.
func (h hostFacts) tryRuntime(ctx context.Context, name string) error {
	at, err := findRuntime(name, os.Getenv("PATH"), blind(h.caller))
	if err != nil {
		return err
	}
	v, err := versionOf(at)
	if err != nil {
		return fault.Wrap(err, "find the OCI runtime %s", name)
	}
	h.worked.mu.Lock()
	known := h.worked.seen[v]
	h.worked.mu.Unlock()
	if known {
		return nil
	}
	if err := h.tryBox(ctx, plan.Config{Tier: plan.TierContainer, Runtime: at}); err != nil {
		return err
	}
	h.worked.mu.Lock()
	defer h.worked.mu.Unlock()
	if h.worked.seen == nil {
		h.worked.seen = map[fileVersion]bool{}
	}
	h.worked.seen[v] = true
	return nil
}
