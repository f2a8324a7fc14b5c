//go:build linux && (amd64 || arm64)

package escape

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Place is a path of the sandbox that the set-up reads, mounts at or checks.
type Place struct {
	Path string
	Dir  bool   // the set-up expects a directory, otherwise a regular file
	For  string // the purpose in the set-up
}

// Places lists all places. TestPlaces_CoverSetUpPaths keeps the list complete.
var Places = []Place{
	{"/proc", true, "procfs"},
	{"/dev", true, "devices, devpts, shm and mqueue"},
	{"/sys", true, "the number of processors"},
	{"/run", true, "a tmpfs that holds what the set-up shows"},
	{"/tmp", true, "a tmpfs"},
	{"/etc", true, "the directory of most files below"},
	{"/etc/resolv.conf", false, "the resolvers"},
	{"/etc/passwd", false, "users"},
	{"/etc/group", false, "groups"},
	{"/etc/machine-id", false, "the identity of a fork with memory"},
	{"/var/lib/dbus/machine-id", false, "the identity of a fork with memory"},
	{"/etc/ssl/certs/ca-certificates.crt", false, "authorities"},
	{"/etc/pki/tls/certs/ca-bundle.crt", false, "authorities"},
	{"/etc/ssl/ca-bundle.pem", false, "authorities"},
	{"/etc/pki/tls/cacert.pem", false, "authorities"},
	{"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", false, "authorities"},
	{"/etc/ssl/cert.pem", false, "authorities"},
	{"/etc/ssl/certs/java/cacerts", false, "Java's authorities"},
	{"/etc/pki/ca-trust/extracted/java/cacerts", false, "Java's authorities"},
	{"/var/lib/ca-certificates/java-cacerts", false, "Java's authorities"},
	{"/opt/jdk/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/opt/java/openjdk/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/opt/jdk/jre/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/usr/lib/jvm/jdk/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/usr/lib/jvm/jdk/jre/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/usr/local/jdk/lib/security/cacerts", false, "Java's authorities, found by a pattern"},
	{"/opt", true, "a directory that patterns list"},
	{"/var", true, "the directory of /var/run"},
	{"/var/run", true, "the old name of /run"},
	{"/run/coppice-ca", true, "the gate's authority, before /run is mounted"},
	{"/run/coppice-resolv.conf", false, "the resolvers, before /run is mounted"},
	{"/run/coppice-git", true, "directories that are shown, before /run is mounted"},
	{"/run/coppice-identity", true, "a new identity, before /run is mounted"},
	{"/run/coppice", true, "the sandbox's own socket, before /run is mounted"},
	{"/run/coppice-bin", true, "the program coppice, before /run is mounted"},
	{"/run/coppice.sock", false, "the sandbox's own socket, before /run is mounted"},
	{"/run/coppice-init", false, "init, before /run is mounted"},
	{"/run/coppice-apt.conf", false, "apt's configuration, before /run is mounted"},
	{"/run/coppice-kept", true, "what the policy keeps in its place, before /run is mounted"},
	{"/.coppice-promote", true, "the workshop of renames"},
	{"/root", true, "the home directory"},
	{"/work", true, "the working directory"},
	{"/srv/mount", true, "a mount of the policy's"},
	{"/srv/kept", true, "a read-only place of the policy's"},
	{"/srv/decoy", false, "a decoy"},
	{"/srv/hidden", true, "a place that is hidden"},
}

// The kinds of an Entry.
const (
	// Link is a symbolic link to To, in which $OUT is the directory of the canaries and $BASE the last component of the
	// entry's path.
	Link    = "link"
	Parent  = "parent"  // the same, in place of the directory of the path
	Missing = "missing" // nothing
	FIFO    = "fifo"
	Socket  = "socket"
	Device  = "device"   // /dev/zero by its number; only in images of real root
	White   = "whiteout" // a device 0:0
	Dir     = "dir"      // a directory that contains a directory
	File    = "file"     // a regular file of a few bytes
	Closed  = "closed"   // the expected type, with mode 000
	Sparse  = "sparse"   // a sparse file of one TiB
	Long    = "long"     // a link whose target is as long as possible
)

// Entry is an entry of a hostile root at a path.
type Entry struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	To   string `json:"to,omitempty"`
}

func (e Entry) String() string { return strings.TrimSpace(e.Path + " " + e.Kind + " " + e.To) }

// Root lists the entries that make a root file system hostile, made in order.
type Root []Entry

func (r Root) String() string {
	lines := make([]string, len(r))
	for i, e := range r {
		lines[i] = e.String()
	}
	return strings.Join(lines, "\n")
}

// Class is a kind of hostile root, as classified by the threat model.
type Class struct {
	What  string // what is at a path that the set-up uses
	Meets string // the protection against it
	Forms []Entry
}

// Classes lists all classes. The grammar puts their forms, whose Path is empty, at any path.
var Classes = []Class{
	{"a link that climbs out of the root (`/..`, `../../..`), or names a path of the host",
		"the host's root is detached before init touches the first path of the sandbox; names are resolved beneath the " +
			"root, and nothing is written through one",
		[]Entry{
			{Kind: Link, To: "/..$OUT/secret"}, {Kind: Link, To: "/..$OUT/precious"}, {Kind: Link, To: "/..$OUT/empty/new"},
			{Kind: Link, To: "/..$OUT/empty"},
			{Kind: Link, To: "/..$OUT/closed/new"}, {Kind: Link, To: "$OUT/secret"},
			{Kind: Link, To: "../../../../../../../../..$OUT/precious"},
			{Kind: Link, To: "/run/../..$OUT/precious"}, {Kind: Link, To: "/var/run/../../..$OUT/precious"},
		}},
	{"a link through `/proc`: `1/root`, `self/root`, `self/cwd`, `self/fd/N`",
		"magic links are never followed; init reads `/proc` by a descriptor of the procfs that it mounted",
		[]Entry{
			{Kind: Link, To: "/proc/1/root$OUT/secret"}, {Kind: Link, To: "/proc/self/root/..$OUT/precious"},
			{Kind: Link, To: "/proc/self/cwd/..$OUT/secret"},
			{Kind: Link, To: "/proc/self/fd/3$OUT/secret"}, {Kind: Link, To: "/proc/self/fd/5$OUT/precious"},
			{Kind: Link, To: "/proc/self/fd/7$OUT/empty/new"},
		}},
	{"a directory on the way that is such a link",
		"the same: every part of a name is resolved beneath the root",
		[]Entry{
			{Kind: Parent, To: "/..$OUT/empty"}, {Kind: Parent, To: "/..$OUT"},
			{Kind: Parent, To: "../../../../../../../..$OUT/empty"},
			{Kind: Parent, To: "/proc/1/root$OUT/empty"}, {Kind: Parent, To: "/proc/self/fd/4$OUT/empty"},
			{Kind: Parent, To: "/.hostile/dir"},
		}},
	{"a link to another file of the sandbox, to itself, or to nothing; one with the longest possible target",
		"a mount point must be a directory and not a link, otherwise the start is refused (`invalid`); a file that does " +
			"not resolve is left as it is",
		[]Entry{
			{Kind: Link, To: "/.hostile/dir"}, {Kind: Link, To: "/.hostile/file"}, {Kind: Link, To: "$BASE"},
			{Kind: Link, To: "/nowhere/at/all"}, {Kind: Long},
		}},
	{"a FIFO, a socket, a device, or a link to one",
		"files are opened with O_PATH or O_NONBLOCK, and only regular files are read; devices of an image have no effect " +
			"(`nodev`); a start that is not ready in time is killed",
		[]Entry{
			{Kind: FIFO}, {Kind: Socket}, {Kind: Device}, {Kind: White}, {Kind: Link, To: "/dev/zero"},
			{Kind: Link, To: "/dev/tty"}, {Kind: Link, To: "/.hostile/fifo"},
		}},
	{"a directory in place of a file, a file in place of a directory, nothing, or an entry with mode 000",
		"missing mount points are made in a layer below; everything else is refused, or left as it is; no error from the " +
			"sandbox's files makes a start omit a protection",
		[]Entry{{Kind: Dir}, {Kind: File}, {Kind: Missing}, {Kind: Closed}}},
	{"a file of one TiB",
		"reads of a file are bounded ([LIMITS.md](LIMITS.md))",
		[]Entry{{Kind: Sparse}}},
}

// Forms lists the entries of all classes.
var Forms = func() (all []Entry) {
	for _, c := range Classes {
		all = append(all, c.Forms...)
	}
	return all
}()

// At returns the entry of a form at a path.
func (e Entry) At(p string) Entry {
	e.Path = p
	return e
}

// Decode makes a root from any bytes. Each pair of bytes selects a place and a form.
func Decode(program []byte) (r Root) {
	const most = 12
	for ; len(program) >= 2 && len(r) < most; program = program[2:] {
		r = append(r, Forms[int(program[1])%len(Forms)].At(Places[int(program[0])%len(Places)].Path))
	}
	return r
}

// Encode returns the program with one entry for each place and form, by their numbers.
func Encode(pairs ...[2]int) (program []byte) {
	for _, p := range pairs {
		program = append(program, byte(p[0]), byte(p[1]))
	}
	return program
}

// wantsDir reports whether the set-up expects a directory at a path.
func wantsDir(p string) bool {
	for _, place := range Places {
		if place.Path == p {
			return place.Dir
		}
	}
	return false
}

// Lay makes the entries in the root at dir; out is the directory of the canaries. It never leaves dir, whatever dir
// contains. It omits entries that cannot be made because another entry is in the way or permissions are missing, and
// returns their errors.
func (r Root) Lay(dir, out string) (left []error, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := layTargets(root); err != nil { // os.Root needs root inside
		left = append(left, err)
	}
	for i, e := range r {
		if err := e.lay(root, fmt.Sprintf(".hostile/was-%d", i), out); err != nil {
			left = append(left, fmt.Errorf("%v: %w", e, err))
		}
	}
	return left, nil
}

// layTargets makes the targets of links inside.
func layTargets(root *os.Root) error {
	if err := root.MkdirAll(".hostile/dir", 0o755); err != nil {
		return err
	}
	if err := root.WriteFile(".hostile/file", []byte("of the image\n"), 0o644); err != nil {
		return err
	}
	err := mknod(root, ".hostile/fifo", unix.S_IFIFO|0o666, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// lay makes one entry, and moves an existing one to was.
func (e Entry) lay(root *os.Root, was, out string) error {
	name := strings.TrimPrefix(e.Path, "/")
	if e.Kind == Parent {
		if name = path.Dir(name); name == "." {
			return errors.New("the root itself")
		}
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := moveAway(root, name, was); err != nil {
		return err
	}
	switch e.Kind {
	case Link, Parent:
		return root.Symlink(strings.NewReplacer("$OUT", out, "$BASE", path.Base(name)).Replace(e.To), name)
	case Long:
		return root.Symlink("/.."+strings.Repeat("/.", (unix.PathMax-4)/2), name)
	case Missing:
		return nil
	case FIFO:
		return mknod(root, name, unix.S_IFIFO|0o666, 0)
	case Socket:
		return mknod(root, name, unix.S_IFSOCK|0o666, 0)
	case Device:
		return mknod(root, name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))
	case White:
		return mknod(root, name, unix.S_IFCHR, 0)
	case Dir:
		return root.MkdirAll(name+"/in", 0o755)
	case File:
		return root.WriteFile(name, []byte("of the image\n"), 0o644)
	case Closed:
		return e.layClosed(root, name)
	case Sparse:
		f, err := root.Create(name)
		if err != nil {
			return err
		}
		return errors.Join(f.Truncate(1<<40), f.Close())
	}
	return fmt.Errorf("no kind %q", e.Kind)
}

// moveAway frees a name. If the set-up has mounted something there, it moves the parent directory away, and moves
// everything else in it back to a new one.
func moveAway(root *os.Root, name, was string) error {
	err := root.Rename(name, was)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	dir := path.Dir(name)
	if !errors.Is(err, unix.EBUSY) || dir == "." {
		return err
	}
	if err := root.Rename(dir, was); err != nil {
		return err
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f, err := root.Open(was)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	for _, n := range names {
		_ = root.Rename(path.Join(was, n), path.Join(dir, n)) // except mount points
	}
	return err
}

func (e Entry) layClosed(root *os.Root, name string) error {
	var err error
	if wantsDir(e.Path) {
		err = root.Mkdir(name, 0o700)
	} else {
		err = root.WriteFile(name, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return root.Chmod(name, 0)
}

// mknod makes a node below a root.
func mknod(root *os.Root, name string, mode uint32, dev int) error {
	dir, err := root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Mknodat(int(dir.Fd()), path.Base(name), mode, dev)
}
