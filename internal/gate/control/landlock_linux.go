//go:build linux && (amd64 || arm64)

package control

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/landlock"
)

// journalRights are those to the directory of the journal.
const journalRights = landlock.ReadRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_TRUNCATE

// opening is a host path that a gate process may use.
type opening struct {
	path   string
	rights uint64
}

// openings returns the paths that a gate process may use: the program, the configuration of the host's resolver, files
// that the Go runtime reads, and the journal, the only one that is writable.
func openings(program, journal string) []opening {
	const readRights, runRights = landlock.ReadRights, landlock.RunRights
	return []opening{
		{program, runRights},
		{"/lib", runRights}, {"/lib64", runRights}, {"/usr/lib", runRights}, // only needed if the binary is not static
		{"/etc", readRights}, {"/run/systemd/resolve", readRights}, {"/run/resolvconf", readRights},
		{"/run/NetworkManager", readRights},
		{"/proc", readRights}, {"/sys", readRights}, {"/usr/share/zoneinfo", readRights},
		// certificate authorities that the host trusts
		{"/usr/share/ca-certificates", readRights}, {"/usr/local/share/ca-certificates", readRights},
		{"/dev/null", readRights | unix.LANDLOCK_ACCESS_FS_WRITE_FILE},
		{journal, journalRights},
	}
}

// wall restricts this thread, and processes that it starts, to openings. Before Linux 5.13 there is no Landlock,
// which plan.Decide reports. The thread must have no_new_privs.
func wall(program, journal string) error {
	abi, err := landlock.Version()
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	handled := landlock.HandledBy(abi)
	handled.Net &= unix.LANDLOCK_ACCESS_NET_BIND_TCP // the gate connects, but listens on no port
	r, err := landlock.New(handled)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, o := range openings(program, journal) {
		if err := allow(r, o); err != nil {
			return fmt.Errorf("landlock: open %s: %w", o.path, err)
		}
	}
	return r.Restrict()
}

// allow adds a path to a ruleset; a missing path needs no rule, and neither does a memfd, which Landlock does not
// restrict.
func allow(r *landlock.Ruleset, o opening) error {
	fd, err := unix.Open(o.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := r.Allow(fd, o.rights); !errors.Is(err, unix.EBADFD) {
		return err
	}
	return nil
}
