//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

const (
	resolvName = "/etc/resolv.conf"
	resolvOurs = "/run/coppice-resolv.conf"
)

// mountResolv writes the host's resolvers, or the gate's, to one of init's files in /run, and mounts it over the file
// to which /etc/resolv.conf resolves. Nothing is recorded in the history, and no file of the sandbox is read or
// written. If the target does not exist, as where systemd-resolved keeps the file in /run, the file is created there.
// If it is not a regular file, or one that must not be covered (rootspec.MayCover), the sandbox has no resolvers.
func mountResolv(g plan.Guest) error {
	if len(g.Resolv) == 0 {
		return nil
	}
	at, err := openInside(resolvName, 0)
	switch {
	case fault.Is(err, fault.Unavailable):
		return fault.Wrap(err, "open %s", resolvName)
	case errors.Is(err, unix.ENOENT):
		return makeResolv(g.Resolv)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.EACCES):
		return nil // the name does not resolve to a file
	case err != nil:
		return fault.Wrap(err, "open %s", resolvName)
	}
	defer at.Close()
	st, err := at.Stat()
	if err != nil {
		return fault.New(fault.Unavailable, "inspect %s", resolvName).Because(err)
	}
	if !st.Mode().IsRegular() {
		return nil // the sandbox replaced the file, and can undo that
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	ok, readOnly, err := mayCover(proc, g.Regions, resolvName, at)
	if err != nil || !ok {
		return err
	}
	if err := os.WriteFile(resolvOurs, g.Resolv, 0o644); err != nil {
		return fault.Wrap(err, "write %s", resolvOurs)
	}
	return fault.Wrap(layOver(resolvOurs, at, readOnly), "bind %s", resolvName)
}

// makeResolv creates the file in /run to which a link at resolvName points. The link can only choose a name in this
// /run; if the name is wrong, no program reads the file.
func makeResolv(text []byte) error {
	link, err := openInside(path.Dir(resolvName), unix.O_DIRECTORY)
	if fault.Is(err, fault.Unavailable) {
		return fault.Wrap(err, "open %s", path.Dir(resolvName))
	}
	if err != nil {
		return nil // no /etc
	}
	defer link.Close()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), path.Base(resolvName), buf)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil // neither a file nor a link
	}
	if err != nil {
		return fault.Wrap(err, "read the link %s", resolvName)
	}
	name, ok := beneathRun(string(buf[:n]))
	if !ok {
		return nil
	}
	run, err := os.OpenRoot("/run")
	if err != nil {
		return fault.Wrap(err, "open /run")
	}
	defer run.Close()
	if err := run.MkdirAll(path.Dir(name), 0o755); err != nil {
		return fault.Wrap(err, "create the directory of /run/%s", name)
	}
	return fault.Wrap(run.WriteFile(name, text, 0o644), "write /run/%s", name)
}

// beneathRun returns the name below /run to which the text of a link in /etc points. It accepts only links that systems
// create, with few directories. Names that begin with "coppice" belong to init.
func beneathRun(target string) (string, bool) {
	const deepest, longest = 4, 255
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(resolvName), target)
	}
	name, ok := strings.CutPrefix(strings.TrimPrefix(path.Clean(target), "/var"), "/run/")
	return name, ok && !strings.HasPrefix(name, "coppice") && len(name) <= longest && strings.Count(name, "/") <= deepest
}
