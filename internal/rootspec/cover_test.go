package rootspec_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestMayCover(t *testing.T) {
	t.Parallel()
	place := func(at ...string) []rootspec.Place { return []rootspec.Place{{Said: at[0], At: at}} }
	const name = "/etc/resolv.conf"
	for _, tt := range []struct {
		about, name, file string
		access            rootspec.Access
		want              bool
	}{
		{"no policy", name, name, rootspec.Access{}, true},
		{"a link within the root", name, "/opt/resolv.conf", rootspec.Access{}, true},
		{"a file of the procfs", name, "/proc/uptime", rootspec.Access{}, false},
		{"a file of /sys", name, "/sys/devices/system/cpu/online", rootspec.Access{}, false},
		{"a name in the procfs", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/random/boot_id",
			rootspec.Access{}, true},
		{"a file of /run", name, "/run/systemd/resolve/resolv.conf", rootspec.Access{}, true},
		{"a shared object", name, "/run/coppice-git/0/pack/x", rootspec.Access{}, false},
		{"a read-only file", name, "/srv/kept", rootspec.Access{ReadOnly: place("/srv/kept")}, false},
		{"in a read-only directory", name, "/srv/kept/deep/file", rootspec.Access{ReadOnly: place("/srv/kept")}, false},
		{"beside a read-only directory", name, "/srv/kept2/file", rootspec.Access{ReadOnly: place("/srv/kept")}, true},
		{"the name itself is read-only", name, name, rootspec.Access{ReadOnly: place(name)}, true},
		{"both are in one read-only directory", name, "/etc/run/resolv.conf", rootspec.Access{ReadOnly: place("/etc")}, true},
		{"a read-only file in the read-only directory of the name", name, "/etc/guard",
			rootspec.Access{ReadOnly: place("/etc", "/etc/guard")}, false},
		{"writable in read-only", name, "/srv/kept/w/file",
			rootspec.Access{Only: true, ReadOnly: place("/srv/kept"), Writable: place("/srv/kept/w")}, false},
		{"all is read-only", name, name, rootspec.Access{Only: true}, true},
		{"all is read-only but the name", name, "/usr/guard", rootspec.Access{Only: true, Writable: place("/etc")}, false},
		{"all is read-only but the file", name, "/var/resolv.conf",
			rootspec.Access{Only: true, Writable: place("/var")}, true},
		{"a decoy", name, "/srv/decoy", rootspec.Access{Decoys: []rootspec.Decoy{{At: "/srv/decoy"}}}, false},
		{"the name is a decoy", name, name, rootspec.Access{Decoys: []rootspec.Decoy{{At: name}}}, false},
		{"a file of the host", name, "/srv/mount/file", rootspec.Access{Mounts: []rootspec.HostMount{{To: "/srv/mount"}}},
			false},
		{"a file of the host that can be written", name, "/srv/mount/file",
			rootspec.Access{Mounts: []rootspec.HostMount{{To: "/srv/mount", Write: true}}}, true},
		{"the host's directory has the name", name, name, rootspec.Access{Mounts: []rootspec.HostMount{{To: "/etc"}}}, true},
	} {
		if got := rootspec.MayCover(tt.access.Regions(), tt.name, tt.file); got != tt.want {
			t.Errorf("%s: %v", tt.about, got)
		}
	}
	if rootspec.MayCover(nil, name, name) {
		t.Error("a file may be covered without regions")
	}
}
