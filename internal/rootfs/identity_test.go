//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Machine IDs of the tests.
var (
	ownID     = strings.Repeat("a", machineIDSize)
	foreignID = strings.Repeat("b", machineIDSize)
	otherID   = strings.Repeat("c", machineIDSize)
)

func TestIdentity_ReplacesForeignIDs(t *testing.T) {
	t.Parallel()
	const etc, dbus = "etc/machine-id", "var/lib/dbus/machine-id"
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, at string) {
			if err := os.WriteFile(at, []byte(text), 0o444); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(to string) func(*testing.T, string) {
		return func(t *testing.T, at string) {
			if err := os.Symlink(to, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	pipe := func(t *testing.T, at string) {
		if err := unix.Mkfifo(at, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dir := func(t *testing.T, at string) {
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	type files map[string]func(*testing.T, string)
	for name, c := range map[string]struct {
		files files
		ids   []string // in the stack
		want  []string // files of the layer
	}{
		"both":            {files{etc: write(foreignID + "\n"), dbus: write(foreignID)}, []string{foreignID}, []string{etc, dbus}},
		"one":             {files{etc: write(foreignID + "\n")}, []string{foreignID}, []string{etc}},
		"its own":         {files{etc: write(otherID), dbus: write(foreignID)}, []string{otherID, foreignID}, []string{dbus}},
		"a link":          {files{etc: write(foreignID), dbus: link("/etc/machine-id")}, []string{foreignID}, []string{etc}},
		"a link outwards": {files{etc: link("/etc/machine-id")}, nil, nil},
		"none":            {files{}, nil, nil},
		"empty":           {files{etc: write("")}, nil, nil},
		"uninitialized":   {files{etc: write("uninitialized\n")}, nil, nil},
		"long":            {files{etc: write(foreignID + strings.Repeat("b", 1<<11))}, nil, nil},
		"more lines":      {files{etc: write(foreignID + "\nmore\n")}, []string{foreignID}, []string{etc}},
		"it again":        {files{etc: write(" " + foreignID + "\x00" + foreignID)}, []string{foreignID}, []string{etc}},
		"largest": {files{etc: write(foreignID + "\n" + strings.Repeat("x", maxMachineIDFile-machineIDSize-1))},
			[]string{foreignID}, []string{etc}},
		"a sparse file": {files{etc: func(t *testing.T, at string) { // what follows could not be kept
			write(foreignID)(t, at)
			if err := os.Truncate(at, 1<<40); err != nil {
				t.Fatal(err)
			}
		}}, nil, nil},
		"not hexadecimal": {files{etc: write(strings.Repeat("g", machineIDSize))}, nil, nil},
		"a named pipe":    {files{etc: pipe}, nil, nil},
		"a directory":     {files{etc: dir}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, home := t.TempDir(), t.TempDir()
			for at, make := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(base, at)), 0o750); err != nil {
					t.Fatal(err)
				}
				make(t, filepath.Join(base, at))
			}
			stack := rootspec.Stack{Layers: []string{base}}
			if ids, err := MachineIDs(stack); err != nil || !slices.Equal(ids, c.ids) {
				t.Errorf("%q, %v", ids, err)
			}
			k := Identity{Below: stack, MachineID: ownID, Instead: []string{strings.Repeat("d", machineIDSize), foreignID}}
			made, err := k.Make(home)
			if err != nil || (made == "") != (len(c.want) == 0) {
				t.Fatalf("%q, %v", made, err)
			}
			if made == "" {
				return
			}
			var have []string
			for _, at := range []string{etc, dbus} {
				text, err := os.ReadFile(filepath.Join(made, at))
				if err != nil {
					continue
				}
				have = append(have, at)
				below, err := os.ReadFile(filepath.Join(base, at))
				if err != nil {
					t.Fatal(err)
				}
				covered, err1 := os.Stat(filepath.Join(base, at))
				ours, err2 := os.Stat(filepath.Join(made, at))
				want := strings.Replace(string(below), foreignID, ownID, 1)
				if err1 != nil || err2 != nil || string(text) != want || ours.Mode() != covered.Mode() ||
					!ours.ModTime().Equal(covered.ModTime()) {
					t.Errorf("%s: %q, %v, %v, %v", at, text, ours, err1, err2)
				}
			}
			if st, err := os.Stat(filepath.Join(made, "etc")); slices.Contains(c.want, etc) && (err != nil ||
				st.Mode().Perm() != 0o750) {
				t.Errorf("%v, %v", st, err)
			}
			if !slices.Equal(have, c.want) {
				t.Errorf("%q, want %q", have, c.want)
			}
			if again, err := k.Make(home); again != made || err != nil {
				t.Errorf("again: %q, %v", again, err)
			}
			stack.Layers = append([]string{made}, stack.Layers...)
			if again, err := (Identity{Below: stack, MachineID: otherID, Instead: k.Instead}).Make(home); again != "" ||
				err != nil {
				t.Errorf("above the layer: %q, %v", again, err)
			}
			k.MachineID = otherID
			if other, err := k.Make(home); other == made || err != nil {
				t.Errorf("with another ID: %q, %v", other, err)
			}
		})
	}
}

// TestIdentity_FollowsNoLinks checks that a link in place of a directory, which a sandbox can make, leads nowhere.
func TestIdentity_FollowsNoLinks(t *testing.T) {
	t.Parallel()
	outside, base := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "machine-id"), []byte(foreignID), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(base, "etc")); err != nil {
		t.Fatal(err)
	}
	stack := rootspec.Stack{Layers: []string{base}}
	ids, err := MachineIDs(stack)
	made, merr := Identity{Below: stack, MachineID: ownID, Instead: []string{foreignID}}.Make(t.TempDir())
	if len(ids) != 0 || made != "" || err != nil || merr != nil {
		t.Errorf("%q, %q, %v, %v", ids, made, err, merr)
	}
}

// TestHostPlan_LeavesOutReplacedFiles checks that a file of the host that is a mount, as in a container, does not cover
// the sandbox's own machine ID.
func TestHostPlan_LeavesOutReplacedFiles(t *testing.T) {
	t.Parallel()
	own := t.TempDir()
	if err := os.Mkdir(filepath.Join(own, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "etc/machine-id"), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	p := func() HostPlan {
		return HostPlan{Files: []rootspec.File{{Target: "/etc/hosts"}, {Target: "/etc/machine-id"}, {Target: "/etc"}}}
	}
	if got := p().identified(rootspec.Stack{Identity: own}).Files; len(got) != 2 || got[0].Target != "/etc/hosts" ||
		got[1].Target != "/etc" {
		t.Errorf("%v", got)
	}
	if got := p().identified(rootspec.Stack{}).Files; len(got) != 3 {
		t.Errorf("%v", got)
	}
}

func TestReadMachineID_AcceptsIDsOnly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		ownID: ownID, ownID + "\n": ownID, "": "", "uninitialized\n": "", ownID[1:]: "", ownID + "a": "",
		ownID + "\nmore": ownID, ownID + "\x00\x00": ownID, ownID + " more": ownID, "\n" + ownID + "\n": ownID,
		ownID + "-": "", "x\n" + ownID: "",
		strings.Repeat("g", machineIDSize): "", strings.Repeat(" ", maxMachineIDFile-machineIDSize) + ownID: ownID,
		strings.Repeat(" ", maxMachineIDFile) + ownID: "", ownID + strings.Repeat("\n", maxMachineIDFile): "",
	} {
		got, all, err := ReadMachineID(strings.NewReader(text))
		if err != nil || got != want || all != text && len(text) <= maxMachineIDFile {
			t.Errorf("%q: %q, %q, %v", text, got, all, err)
		}
	}
	if id, _, err := ReadMachineID(iotest.ErrReader(os.ErrInvalid)); err == nil || id != "" {
		t.Errorf("a file that cannot be read: %q, %v", id, err)
	}
}
