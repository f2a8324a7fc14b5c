package rootfs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// systemDirs are the directories of "/" that make a system run: what packages
// own. Everything else belongs to people.
var systemDirs = []string{
	"/bin", "/boot", "/etc", "/gnu", "/lib", "/lib32", "/lib64", "/libexec", "/libx32",
	"/nix", "/opt", "/sbin", "/srv", "/usr", "/var",
}

// notCopied are places below systemDirs whose content is left out: caches that
// any program can make again, and the storage of other sandboxes.
var notCopied = []string{
	"/var/cache/apt/archives", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
	"/var/lib/libvirt/images", "/var/lib/lxc", "/var/lib/lxd", "/var/lib/machines", "/var/lib/snapd/snaps",
	"/var/tmp",
}

// CopySkips gives the function that says for an absolute path of the host whether
// a base "host-copy" leaves it out, with all that is in it. A base takes the
// directories of the system and the links and files of "/"; homes, mounts,
// reserved places and the caches of notCopied become empty directories. The
// store is left out wherever it appears.
func CopySkips(h Host) func(p string) bool {
	tree := newMountTree(h.Mounts)
	store, stored := tree.place(h.Store)
	mounts := map[string]bool{}
	for _, m := range h.Mounts {
		if m.Point != "/" {
			mounts[m.Point] = true
		}
	}
	return func(p string) bool {
		dir := path.Dir(p)
		switch {
		case p == "/":
			return false
		case mounts[dir], slices.Contains(notCopied, dir):
			return true
		case dir != "/" && !slices.ContainsFunc(systemDirs, func(d string) bool { return rootspec.Within(dir, d) }):
			return true
		case rootspec.Within(p, h.Store):
			return true
		}
		if !stored || path.Base(p) != path.Base(store.path) {
			return false
		}
		at, ok := tree.place(p)
		return ok && at == store
	}
}

// Fingerprint is a cheap sign of the state of the host's system directories: it
// changes when packages are installed, removed or upgraded, and when entries are
// made or removed in the top directories. It looks at few dozen entries.
func Fingerprint() string {
	h := sha256.New()
	for _, p := range []string{
		"/etc", "/etc/alternatives", "/etc/ld.so.cache", "/etc/os-release", "/lib/apk/db/installed", "/opt",
		"/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/sbin", "/usr/share",
		"/var/lib/dpkg/status", "/var/lib/pacman/local", "/var/lib/rpm", "/var/lib/rpm/rpmdb.sqlite",
	} {
		fi, err := os.Lstat(p)
		if err != nil {
			continue
		}
		fmt.Fprintln(h, p, fi.Mode(), fi.ModTime().UnixNano(), sizeOf(fi))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// sizeOf is the size of a file; that of a directory says nothing.
func sizeOf(fi fs.FileInfo) int64 {
	if fi.IsDir() {
		return 0
	}
	return fi.Size()
}

// SystemDirs lists what "host-copy" takes from "/", for messages.
func SystemDirs() string { return strings.Join(systemDirs, " ") }
