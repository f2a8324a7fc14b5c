//go:build linux

package rootfs

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
)

// fakeHost is a host described by lines: "path dir", "path -> link", "path file".
type fakeHost struct {
	mounts string
	tree   string
	root   bool
	store  string
	keep   []string
	covers string // a directory that is opaque in the layers
}

func (f fakeHost) host(t *testing.T) Host {
	t.Helper()
	ms, err := parseMounts(strings.NewReader(f.mounts))
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{}
	links := map[string]string{}
	access := map[string]uint32{}
	children := map[string][]string{}
	for line := range strings.Lines(f.tree) {
		w := strings.Fields(line)
		if len(w) == 0 {
			continue
		}
		p := w[0]
		children[path.Dir(p)] = append(children[path.Dir(p)], path.Base(p))
		access[p] = 5
		switch w[1] {
		case "dir":
			modes[p] = fs.ModeDir | 0o755
		case "mine":
			modes[p], access[p] = fs.ModeDir|0o755, 7
		case "scratch":
			modes[p], access[p] = fs.ModeDir|fs.ModeSticky|0o777, 7
		case "closed":
			modes[p], access[p] = fs.ModeDir|0o700, 0
		case "enter":
			modes[p], access[p] = fs.ModeDir|0o711, 1
		case "file":
			modes[p] = 0o644
		case "socket":
			modes[p] = fs.ModeSocket | 0o666
		case "->":
			modes[p], links[p] = fs.ModeSymlink|0o777, w[2]
		}
	}
	return Host{
		Mounts: ms, Root: f.root, Store: f.store, Keep: f.keep,
		Covered: func(p string) bool { return p == f.covers },
		Lstat: func(p string) (fs.FileMode, error) {
			m, ok := modes[p]
			if !ok {
				return 0, &fs.PathError{Op: "lstat", Path: p, Err: fs.ErrNotExist}
			}
			return m, nil
		},
		ReadDir: func(p string) ([]string, error) {
			if p != "/" && access[p]&4 == 0 {
				return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrPermission}
			}
			return children[p], nil
		},
		Readlink: func(p string) (string, error) { return links[p], nil },
		Access:   func(p string) uint32 { return access[p] },
	}
}

// text formats a plan, one item per line.
func (p HostPlan) text() string {
	var l []string
	for _, x := range p.Parts {
		s := "part " + x.Path
		if x.Wrap {
			s += " wrap"
		}
		if x.Empty {
			s += " empty"
		}
		l = append(l, s)
	}
	for _, x := range p.Skeleton {
		if x.Link != "" {
			l = append(l, fmt.Sprintf("link %s %s", x.Path, x.Link))
		} else {
			l = append(l, fmt.Sprintf("dir %s %o", x.Path, x.Mode))
		}
	}
	for _, x := range p.Files {
		l = append(l, "file "+x.Target)
	}
	for _, x := range p.Hide {
		l = append(l, "hide "+x)
	}
	for _, x := range p.Left {
		l = append(l, "left "+x.Path+": "+x.Why)
	}
	return strings.Join(l, "\n")
}

const (
	rootMount   = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
	kernelStuff = `21 20 0:21 / /proc rw - proc proc rw
22 20 0:22 / /sys rw - sysfs sysfs rw
23 22 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
24 20 0:6 / /dev rw - devtmpfs devtmpfs rw
25 20 0:24 / /run rw - tmpfs tmpfs rw
26 25 0:25 / /run/user/1000 rw - tmpfs tmpfs rw
27 20 0:26 / /tmp rw - tmpfs tmpfs rw
28 21 0:27 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
`
	plainTree = `/bin -> usr/bin
/usr dir
/usr/bin dir
/etc dir
/etc/passwd file
/home dir
/home/me mine
/var dir
/var/lib dir
/proc dir
/sys dir
/dev dir
/run dir
/tmp dir
`
)

func TestHostParts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		host fakeHost
		want string
	}{
		{
			"root, everything on one file system, the store below it",
			fakeHost{mounts: rootMount + kernelStuff, tree: plainTree, root: true, store: "/var/lib/coppice"},
			"part / wrap\nhide /var/lib/coppice",
		},
		{
			"root, the store is a mount of its own",
			fakeHost{mounts: rootMount + kernelStuff + "30 20 8:2 / /var/lib/coppice rw - xfs /dev/sdb rw\n", tree: plainTree,
				root: true, store: "/var/lib/coppice"},
			"part /",
		},
		{
			"root, the store lies in a mount",
			fakeHost{mounts: rootMount + "30 20 8:2 / /data rw - xfs /dev/sdb rw\n", tree: plainTree + "/data dir", root: true,
				store: "/data/x/coppice"},
			"part /\npart /data wrap\nhide /data/x/coppice",
		},
		{
			"root, data and other mounts",
			fakeHost{mounts: rootMount + kernelStuff + `30 20 8:2 / /home rw - ext4 /dev/sdb rw
31 30 8:3 / /home/me/disk rw - btrfs /dev/sdc rw
32 20 0:40 / /boot/efi rw - vfat /dev/sda2 rw
33 20 0:41 / /snap/core/1 ro - squashfs /dev/loop1 ro
34 20 0:42 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
35 20 0:43 / /misc rw - autofs auto rw
36 35 0:44 / /misc/nfs rw - nfs4 server:/x rw
37 20 0:45 / /mnt/ram\040disk rw - tmpfs tmpfs rw
38 20 0:46 / /secret rw - fuse.sshfs x rw
`, tree: plainTree + "/home/me/disk dir\n/boot/efi dir\n/snap/core/1 dir\n/misc dir\n/misc/nfs dir\n", root: true, store: "/var/lib/coppice"},
			`part / wrap
part /home
part /home/me/disk
hide /var/lib/coppice
left /boot/efi: file systems that ignore case cannot be a layer
left /misc: it is mounted on demand
left /misc/nfs: it is mounted on something that is left out
left /mnt/ram disk: it cannot be read: file does not exist
left /secret: it cannot be read: file does not exist
left /snap/core/1: it is a snap
left /var/lib/docker/overlay2/x/merged: it is the root of a container`,
		},
		{
			"root in a container: files that are mounts",
			fakeHost{mounts: "20 1 0:50 / / rw - overlay overlay rw\n" + kernelStuff + `30 20 8:1 /docker/hosts /etc/hosts rw - ext4 /dev/sda1 rw
31 20 8:1 /docker/sock /etc/docker.sock rw - ext4 /dev/sda1 rw
32 20 8:1 /vol /var/lib/coppice rw - ext4 /dev/sda1 rw
`, tree: plainTree + "/etc/hosts file\n/etc/docker.sock socket\n", root: true, store: "/var/lib/coppice"},
			"part /\nfile /etc/hosts\nleft /etc/docker.sock: it is not a directory or plain file",
		},
		{
			"root, the store's file system is mounted at a second place",
			fakeHost{mounts: rootMount +
				"30 20 8:1 /var /mnt/var rw - ext4 /dev/sda1 rw\n31 20 8:1 /var/lib/coppice/layers /mnt/layers rw - ext4 " +
				"/dev/sda1 rw\n",
				tree: plainTree + "/mnt/var dir\n/mnt/layers dir", root: true, store: "/var/lib/coppice"},
			"part / wrap\npart /mnt/var wrap\nhide /mnt/var/lib/coppice\nhide /var/lib/coppice\nleft /mnt/layers: it exposes a " +
				"part of the store",
		},
		{
			"root, mounts that others cover",
			fakeHost{mounts: rootMount +
				"30 20 8:2 / /home rw - ext4 /dev/sdb rw\n31 30 8:3 / /home/me rw - ext4 /dev/sdc rw\n32 30 8:4 / /home rw - " +
				"ext4 /dev/sdd rw\n",
				tree: plainTree, root: true, store: "/var/lib/coppice"},
			"part / wrap\npart /home\nhide /var/lib/coppice",
		},
		{
			"root in a chroot: the mounts do not show the root",
			fakeHost{mounts: "30 20 8:2 / /home rw - ext4 /dev/sdb rw\n", tree: plainTree, root: true,
				store: "/var/lib/coppice"},
			"part / wrap\nhide /var/lib/coppice",
		},
		{
			"a user",
			fakeHost{mounts: rootMount + kernelStuff,
				tree:  plainTree + "/root closed\n/srv dir\n/opt enter\n/x file\n/sock socket\n",
				store: "/home/me/.local/share/coppice"},
			`part /etc
part /home wrap
part /opt
part /usr
part /var
link /bin usr/bin
dir /root 0
dir /srv 555
file /x
hide /home/me/.local/share/coppice
left /sock: it is not a directory, plain file or link`,
		},
		{
			"a user, with an empty directory that was a part",
			fakeHost{mounts: rootMount, tree: "/srv dir\n/usr dir\n/usr/bin dir", store: "/home/me/c", keep: []string{"/srv"}},
			"part /srv\npart /usr",
		},
		{
			"a user, with a mount in a repository whose files are layers",
			fakeHost{mounts: rootMount + "30 20 8:2 / /srv/r/data rw - ext4 /dev/sdb rw\n", covers: "/srv/r",
				tree:  "/srv dir\n/srv/r mine\n/srv/r/data mine\n/srv/r/x file\n/srv/s mine\n/usr dir\n/usr/bin dir",
				store: "/home/me/c"},
			"part /srv/r\npart /srv/s\npart /usr\ndir /srv 555",
		},
		{
			"a user in a container: mounts in the way",
			fakeHost{mounts: rootMount + kernelStuff +
				"30 20 8:1 /docker/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n31 20 0:40 / /var/lib/fuse rw - fuse.lxcfs lxcfs rw\n",
				tree: plainTree +
					"/etc/hosts file\n/etc/ssl dir\n/etc/ssl/cert file\n/etc/mtab -> /proc/mounts\n/var/lib/fuse " +
					"dir\n/var/lib/dpkg dir\n/var/lib/dpkg/x file\n/var/log dir\n/var/log/x file", store: "/home/me/c"},
			`part /etc/ssl
part /home wrap
part /usr
part /var/lib/dpkg
part /var/log
link /bin usr/bin
dir /etc 555
link /etc/mtab /proc/mounts
dir /var 555
dir /var/lib 555
dir /var/lib/fuse 555
file /etc/hosts
file /etc/passwd
hide /home/me/c`,
		},
		{
			"a user, a mount below a directory that everybody writes to",
			fakeHost{mounts: rootMount + "30 20 8:2 / /var/tmp/a/b rw - ext4 /dev/sdb rw\n",
				tree: "/var dir\n/var/tmp scratch\n/var/tmp/a dir\n/var/tmp/a/b dir\n/var/tmp/c file\n", store: "/home/me/c"},
			"part /var/tmp empty\ndir /var 555\ndir /var/tmp/a 555\ndir /var/tmp/a/b 555\nfile /var/tmp/c",
		},
		{
			"a user, a mount below a directory that cannot be listed",
			fakeHost{mounts: rootMount + "30 20 8:2 / /srv/a/b rw - ext4 /dev/sdb rw\n", tree: "/srv enter\n/srv/a dir\n",
				store: "/home/me/c"},
			"dir /srv 111\nleft /srv: it contains mount points and cannot be listed: permission denied",
		},
		{
			"a user, the home is a mount and holds the store",
			fakeHost{mounts: rootMount + "30 20 8:2 / /home rw - ext4 /dev/sdb rw\n", tree: plainTree, store: "/home/me/c"},
			"part /etc\npart /home wrap\npart /usr\npart /var\nlink /bin usr/bin\nhide /home/me/c",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := HostParts(c.host.host(t)).text(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestParseMounts_RefusesMalformedLines(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"1 2 3", "x 1 8:1 / / rw - ext4 a rw", "1 1 8:1 / / rw ext4 a rw",
		"1 x 8:1 / / rw - ext4 a rw", "1 1 8:1 / relative rw - ext4 a rw"} {
		if _, err := parseMounts(strings.NewReader(s)); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
	ms, err := parseMounts(strings.NewReader(`1 1 8:1 / /a\040b\134\011 rw shared:1 master:2 - fuse.x-y src\040e rw`))
	if err != nil || ms[0].Mountpoint != "/a b\\\t" || ms[0].FSType != "fuse.x-y" || ms[0].Source != "src e" {
		t.Errorf("%+v %v", ms, err)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte(rootMount + kernelStuff))
	f.Fuzz(func(t *testing.T, text []byte) {
		ms, err := parseMounts(bytes.NewReader(text))
		if err != nil {
			return
		}
		tree := newMountTree(ms)
		for _, m := range ms {
			if at := tree.at(m.Mountpoint); at != nil && !slices.Contains(ms, at) {
				t.Error("at returned an unknown mount")
			}
		}
	})
}
