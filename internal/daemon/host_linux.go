package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/probe"
	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// hostFacts describes the host to the engine.
type hostFacts struct {
	programs *program.Set
	home     string
	root     bool // the daemon is real root
	caller   plan.Caller
	bootID   string
	worked   *workedRuntimes
}

func newHostFacts(c engineConfig) (hostFacts, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return hostFacts{}, fault.Wrap(err, "read the boot id")
	}
	h := hostFacts{programs: c.Programs, home: c.Home, root: c.RealUID < 0 && os.Getuid() == 0,
		bootID: strings.TrimSpace(string(boot)), worked: &workedRuntimes{}}
	h.caller = plan.Caller{Root: h.root}
	if !h.root {
		uid, gid := c.RealUID, c.RealGID
		if uid < 0 {
			uid, gid = os.Getuid(), os.Getgid()
		}
		h.caller.UID, h.caller.GID = uint32(uid), uint32(gid) // IDs of the host
		h.caller.Unmapped = c.RealUID < 0
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostFacts{}, fault.Wrap(err, "look up who runs the daemon")
	}
	h.caller = identified(h.caller, passwd, c.UserHome)
	return h, nil
}

// identified completes the caller from a passwd(5) file. A user who is not in it has no name, and the home of their
// environment: users of a container and of a directory service need no entry. Podman writes an entry for a user of a
// container, with the home /.
func identified(c plan.Caller, passwd []byte, home string) plan.Caller {
	for _, u := range plan.ParsePasswd(passwd) {
		if u.UID == c.UID {
			c.Name, c.Home, c.Shell = u.Name, u.Home, u.Shell
			break
		}
	}
	if (c.Home == "" || c.Home == "/") && filepath.IsAbs(home) {
		c.Home = filepath.Clean(home)
	}
	return c
}

// homes returns the directories that ~ stands for in a policy.
func (h hostFacts) homes(env string) (out []string) {
	for _, home := range []string{env, h.caller.Home} {
		if home = filepath.Clean(home); filepath.IsAbs(home) && !slices.Contains(out, home) {
			out = append(out, home)
		}
	}
	if len(out) == 0 {
		out = []string{"/"} // as in a shell without HOME
	}
	return out
}

// probe reports the capabilities of this host.
func (h hostFacts) probe(ctx context.Context, q engine.HostQuestion) (wire.ProbeReport, error) {
	init, err := h.programs.File(program.Init)
	if err != nil {
		return wire.ProbeReport{}, err
	}
	o := probe.Options{Home: h.home, Root: h.root, Quick: q.Quick, Program: init}
	if q.GVisor {
		o.GVisor = h.tryGVisor
	}
	for _, name := range q.Runtimes {
		o.Runtimes = append(o.Runtimes,
			probe.Runtime{Name: name, Try: func(ctx context.Context) error { return h.tryRuntime(ctx, name) }})
	}
	return probe.Wire(ctx, o)
}

// printed are the paths whose change times show that the system was changed: package managers and installers
// rename files into them.
var printed = []string{
	"/", "/bin", "/etc", "/etc/passwd", "/lib", "/lib64", "/opt", "/sbin", "/usr", "/usr/bin", "/usr/include",
	"/usr/lib", "/usr/lib64",
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/libexec", "/usr/local", "/usr/local/bin",
	"/usr/local/lib", "/usr/sbin",
	"/usr/share", "/var/lib/dpkg/status", "/var/lib/rpm", "/var/lib/apk", "/var/lib/pacman/local",
}

// print returns a fingerprint of the host's system directories, from the change times of a few of them.
func (h hostFacts) print() string {
	sum := sha256.New()
	for _, p := range printed {
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			fmt.Fprintf(sum, "%s -\n", p)
			continue
		}
		fmt.Fprintf(sum, "%s %d %d %d.%d\n", p, st.Dev, st.Ino, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// importOptions selects what host-copy imports: the system, without users' homes, mounts, and directories that
// are created at every boot.
func (h hostFacts) importOptions() (layer.ImportOptions, error) {
	empty := []string{"/dev", "/home", "/media", "/mnt", "/proc", "/root", "/run", "/sys", "/tmp", "/var/tmp",
		"/var/cache/apt/archives", "/lost+found"}
	store, err := filepath.EvalSymlinks(h.home)
	if err != nil {
		return layer.ImportOptions{}, fault.Wrap(err, "find the home")
	}
	return layer.ImportOptions{OneFileSystem: true, Empty: empty, Skip: []string{store}}, nil
}
