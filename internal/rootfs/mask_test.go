//go:build linux

package rootfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// contents lists a mask: "path/" is a directory, "path/!" an opaque one, "path-" a whiteout, "path=" an empty file.
func contents(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel := strings.TrimPrefix(p, dir+"/")
		var st unix.Stat_t
		switch err := unix.Lstat(p, &st); {
		case err != nil:
			return err
		case d.IsDir() && isOpaque(p):
			rel += "/!"
		case d.IsDir():
			rel += "/"
		case st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0:
			rel += "-"
		case d.Type().IsRegular() && st.Size == 0 && st.Mode == unix.S_IFREG|0o600:
			rel += "="
		default:
			t.Errorf("the mask has %s, %o", rel, st.Mode)
		}
		out = append(out, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMask_Contents(t *testing.T) {
	t.Parallel()
	link := func(t *testing.T, root, at, to string) {
		t.Helper()
		if err := os.Symlink(to, root+"/"+at); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		base []string
		link map[string]string
		hide string
		want string
	}{
		{"a file", []string{"etc/", "etc/shadow-", "etc/passwd-"}, nil, "/etc/shadow", "etc/ etc/shadow-"},
		{"a directory", []string{"h/.ssh/"}, nil, "/h/.ssh", "h/ h/.ssh-"},
		{"what is missing", []string{"h/"}, nil, "/h/.config/gh", "h/ h/.config-"},
		{"what is missing at the top", nil, nil, "/h/x", "h-"},
		{"one in another", []string{"h/.docker/a/"}, nil, "/h/.docker /h/.docker/a/b", "h/ h/.docker-"},
		{"all in a directory", []string{"k/", "k/a-"}, nil, "/k/*", "k/!"},
		{"all in none", []string{"a/"}, nil, "/k/*", "k-"},
		{"all and one", []string{"k/", "k/a-"}, nil, "/k/* /k/a", "k/!"},
		{"below a file", []string{"h/", "h/f-"}, nil, "/h/f/x", ""},
		{"a link", []string{"h/", "data/keys/"}, map[string]string{"h/.ssh": "/data/keys"}, "/h/.ssh",
			"data/ data/keys- h/ h/.ssh-"},
		{"a link with dots", []string{"h/", "h/d/", "h/k/"}, map[string]string{"h/.ssh": "d/./..//k/."}, "/h/.ssh",
			"h/ h/.ssh- h/k-"},
		{"a link that ends in dots", []string{"h/", "d/k/x/"}, map[string]string{"h/.ssh": "../d/k/x/.."}, "/h/.ssh",
			"d/ d/k- h/ h/.ssh-"},
		{"a link to nothing", []string{"h/", "d/"}, map[string]string{"h/.ssh": "/d/none/x"}, "/h/.ssh",
			"d/ d/none- h/ h/.ssh-"},
		{"a link on the way", []string{"h/", "dots/gh/"}, map[string]string{"h/.config": "../dots"}, "/h/.config/gh",
			"dots/ dots/gh-"},
		{"all behind a link", []string{"h/", "dots/"}, map[string]string{"h/k": "/dots"}, "/h/k/*", "dots/!"},
		{"a link to where it lies", []string{"h/"}, map[string]string{"h/x": ".", "h/y": "/h", "h/z": "/"}, "/h/x /h/y /h/z",
			"h/ h/x- h/y- h/z-"},
		{"a circle", []string{"h/"}, map[string]string{"h/a": "b", "h/b": "a"}, "/h/a/x", ""},
		{"a circle of hidden ones", []string{"h/"}, map[string]string{"h/a": "b", "h/b": "a"}, "/h/a", "h/ h/a- h/b-"},
		{"above the root", []string{"h/", "d/"}, map[string]string{"h/a": "../../../d"}, "/h/a", "d- h/ h/a-"},
		{"the box's own", []string{"run/user/", "var/"}, map[string]string{"var/run": "/run"},
			"/run/user/* /var/run/docker.sock /tmp/x", ""},
		{"nothing", []string{"h/"}, nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base, home := t.TempDir(), t.TempDir()
			for _, what := range c.base {
				plant(t, base, what)
			}
			for at, to := range c.link {
				link(t, base, at, to)
			}
			made, err := Mask{Below: rootspec.Stack{Layers: []string{base}}, Hide: strings.Fields(c.hide)}.Make(home)
			if err != nil {
				if fault.Is(err, fault.Unsupported) || strings.Contains(err.Error(), "operation not permitted") {
					t.Skip("needs overlayfs-marks: whiteouts and attributes")
				}
				t.Fatal(err)
			}
			if got := contents(t, made.Dir); !slices.Equal(got, strings.Fields(c.want)) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestMask_ListsHiddenPaths checks that a mask names the paths that were to be hidden, and not the part of a missing
// one that it hides.
func TestMask_ListsHiddenPaths(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for _, what := range []string{"h/", "etc/", "etc/shadow-", "data/keys/", "d/k/x/"} {
		plant(t, base, what)
	}
	for at, to := range map[string]string{"h/.ssh": "/data/keys", "h/up": "../d/k/x/..", "h/self": "/h", "conf": "h"} {
		if err := os.Symlink(to, base+"/"+at); err != nil {
			t.Fatal(err)
		}
	}
	k := Mask{Below: rootspec.Stack{Layers: []string{base}}, Hide: []string{"/etc/shadow", "/h/.config/gh", "/h/none/*",
		"/h/.ssh", "/h/up", "/h/self", "/data/*", "/conf/.aws", "/run/docker.sock"}}
	made, err := k.Make(t.TempDir())
	if err != nil {
		if fault.Is(err, fault.Unsupported) || strings.Contains(err.Error(), "operation not permitted") {
			t.Skip("needs overlayfs-marks: whiteouts and attributes")
		}
		t.Fatal(err)
	}
	want := []string{"/data/*", "/data/keys", "/d/k", "/etc/shadow", "/h/.aws", "/h/.config/gh", "/h/.ssh", "/h/none/*",
		"/h/self", "/h/up"}
	slices.Sort(want)
	if !slices.Equal(made.Hidden, want) {
		t.Errorf("%q, want %q", made.Hidden, want)
	}
}

// TestMask_HasPlaceholdersForHoneytokens checks that a mask has an empty file at the path of a honeytoken, with its
// parent directories, which hide what they cover.
func TestMask_HasPlaceholdersForHoneytokens(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		base   []string
		link   map[string]string
		hide   string
		decoys string
		want   string
		at     string // path of the last one
		err    fault.Kind
	}{
		{name: "a file", base: []string{"h/", "h/.netrc-"}, hide: "/h/.netrc /h/b", decoys: "/h/.netrc",
			want: "h/ h/.netrc= h/b-", at: "/h/.netrc"},
		{name: "in a directory", base: []string{"h/.ssh/", "h/.ssh/id_rsa-"}, hide: "/h/.ssh", decoys: "/h/.ssh/id_ed25519",
			want: "h/ h/.ssh/! h/.ssh/id_ed25519=", at: "/h/.ssh/id_ed25519"},
		{name: "several in one", base: []string{"h/"}, hide: "/h/.config/gh /h/.config/x",
			decoys: "/h/.config/x /h/.config/gh/hosts.yml",
			want:   "h/ h/.config/! h/.config/gh/! h/.config/gh/hosts.yml= h/.config/x=", at: "/h/.config/gh/hosts.yml"},
		{name: "missing at the top", hide: "/h/x", decoys: "/h/x", want: "h/! h/x=", at: "/h/x"},
		{name: "among all of a directory", base: []string{"k/", "k/a-"}, hide: "/k/*", decoys: "/k/b/c",
			want: "k/! k/b/! k/b/c=", at: "/k/b/c"},
		{name: "in the place of a link", base: []string{"h/", "d/"}, link: map[string]string{"h/.ssh": "/d"}, hide: "/h/.ssh",
			decoys: "/h/.ssh/id", want: "d- h/ h/.ssh/! h/.ssh/id=", at: "/h/.ssh/id"},
		{name: "behind a link", base: []string{"h/", "dots/gh/"}, link: map[string]string{"h/.config": "../dots"},
			hide: "/h/.config/gh", decoys: "/h/.config/gh/hosts.yml", want: "dots/ dots/gh/! dots/gh/hosts.yml=",
			at: "/dots/gh/hosts.yml"},
		{name: "by two names", base: []string{"h/", "dots/"}, link: map[string]string{"h/d": "/dots"}, hide: "/h/d/x /dots/x",
			decoys: "/dots/x /h/d/x", want: "dots/ dots/x=", at: "/dots/x"},
		{name: "one in another", base: []string{"h/"}, hide: "/h/x /h/x/y", decoys: "/h/x /h/x/y", err: fault.Invalid},
		{name: "what is not hidden", base: []string{"h/", "h/f-"}, decoys: "/h/f", err: fault.Conflict},
		{name: "the box's own", base: []string{"var/"}, link: map[string]string{"var/run": "/run"}, hide: "/var/run/x",
			decoys: "/var/run/x", err: fault.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			base, home := t.TempDir(), t.TempDir()
			for _, what := range c.base {
				plant(t, base, what)
			}
			for at, to := range c.link {
				if err := os.Symlink(to, base+"/"+at); err != nil {
					t.Fatal(err)
				}
			}
			k := Mask{Below: rootspec.Stack{Layers: []string{base}}, Hide: strings.Fields(c.hide),
				Decoys: strings.Fields(c.decoys)}
			made, err := k.Make(home)
			if err != nil && strings.Contains(err.Error(), "operation not permitted") {
				t.Skip("needs overlayfs-marks: whiteouts and attributes")
			}
			if c.err != "" {
				if !fault.Is(err, c.err) {
					t.Fatalf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := contents(t, made.Dir); !slices.Equal(got, strings.Fields(c.want)) {
				t.Errorf("%q, want %q", got, c.want)
			}
			if last := k.Decoys[len(k.Decoys)-1]; made.Decoys[last] != c.at {
				t.Errorf("%s is at %s, want %s", last, made.Decoys[last], c.at)
			}
			var places []string
			for _, at := range made.Decoys {
				places = append(places, at)
			}
			slices.Sort(places)
			places = slices.Compact(places)
			if held, err := Holders(made.Dir); err != nil || !slices.Equal(held, places) {
				t.Errorf("holders %q, %v, want %q", held, err, places)
			}
			for _, at := range places {
				if is, err := hidden(made.Dir, at); err != nil || !is {
					t.Errorf("the host's file at %s is not hidden: %v", at, err)
				}
			}
			k.ByFiles = true
			byFiles, err := k.Make(home)
			if held, herr := Holders(byFiles.Dir); err != nil || herr != nil || byFiles.Dir == made.Dir ||
				!slices.Equal(held, places) {
				t.Errorf("with removals as files: %v; holders %q, %v, want %q", err, held, herr, places)
			}
			for _, at := range places {
				if is, err := hidden(byFiles.Dir, at); err != nil || !is {
					t.Errorf("with removals as files, the host's file at %s is not hidden: %v", at, err)
				}
			}
			k.ByFiles, k.Decoys = false, nil
			if plain, err := k.Make(home); err != nil || plain.Dir == made.Dir {
				t.Errorf("without decoys the mask is the same: %v", err)
			}
			if again, err := (Mask{Below: k.Below, Hide: k.Hide, Decoys: strings.Fields(c.decoys)}).
				Make(home); err != nil || again.Dir != made.Dir {
				t.Errorf("the mask is different when created again: %v", err)
			}
		})
	}
}

// TestMask_CopiesModesOfCovered checks that the directories of a mask have the modes of those in the topmost layer
// below, and that masks with other content have other names.
func TestMask_CopiesModesOfCovered(t *testing.T) {
	t.Parallel()
	top, base, home := t.TempDir(), t.TempDir(), t.TempDir()
	plant(t, top, "h/")
	plant(t, base, "h/.ssh/")
	plant(t, base, "etc/ssl/")
	for p, mode := range map[string]os.FileMode{top: 0o751, top + "/h": 0o700, base + "/h": 0o755,
		base + "/etc/ssl": 0o711} {
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	k := Mask{Below: rootspec.Stack{Layers: []string{top, base}}, Hide: []string{"/h/.ssh", "/etc/ssl/private"}}
	one, err := k.Make(home)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{"": 0o751, "/h": 0o700, "/etc/ssl": 0o711} {
		fi, err := os.Stat(one.Dir + p)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%q: %v, %v", p, fi.Mode(), err)
		}
	}
	if again, err := k.Make(home); err != nil || again.Dir != one.Dir || again.Places != one.Places || one.Places != 2 {
		t.Errorf("%+v, %+v, %v", one, again, err)
	}
	if err := os.Chmod(top+"/h", 0o750); err != nil {
		t.Fatal(err)
	}
	two, err := k.Make(home)
	if err != nil || two.Dir == one.Dir {
		t.Errorf("%+v, %v", two, err)
	}
	// An incomplete mask does not exist.
	left, err := os.ReadDir(home)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	for _, p := range []string{"/", "h", "", "/h/..", "/h\x00"} {
		k.Hide = []string{p}
		if _, err := k.Make(home); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

// TestMask_HidesOtherMountsOfDirectory checks that a directory with several mounts is hidden at all of them, unless
// another mount covers it there.
func TestMask_HidesOtherMountsOfDirectory(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if reserved(dir) {
		if dir, err = os.MkdirTemp("/var/tmp", "coppice-mask-*"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	for _, p := range []string{"h/.ssh/keys/", "bind/.ssh/keys/", "inner/", "covered/.ssh/", "other/.ssh/",
		"h/k/", "bind/k/"} {
		plant(t, dir, p)
	}
	k := Mask{
		Below: rootspec.Stack{Host: true},
		Mounts: []*mountinfo.Info{
			{ID: 1, Major: 8, Minor: 1, Root: "/", Mountpoint: "/", FSType: "ext4"},
			{ID: 2, Parent: 1, Major: 8, Minor: 1, Root: dir + "/h", Mountpoint: dir + "/bind"},
			{ID: 3, Parent: 1, Major: 8, Minor: 1, Root: dir + "/h/.ssh/keys", Mountpoint: dir + "/inner"},
			{ID: 4, Parent: 1, Major: 8, Minor: 1, Root: dir + "/h", Mountpoint: dir + "/covered"},
			{ID: 5, Parent: 4, Major: 8, Minor: 2, Root: "/", Mountpoint: dir + "/covered"},
			{ID: 6, Parent: 1, Major: 8, Minor: 2, Root: dir + "/h", Mountpoint: dir + "/other"},
		},
		Hide: []string{dir + "/h/.ssh", dir + "/h/k/*"},
	}
	made, err := k.Make(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range contents(t, made.Dir) {
		if p = strings.TrimPrefix(p, strings.TrimPrefix(dir, "/")+"/"); strings.HasSuffix(p, "-") ||
			strings.HasSuffix(p, "!") {
			got = append(got, p)
		}
	}
	if want := []string{"bind/.ssh-", "bind/k/!", "h/.ssh-", "h/k/!", "inner-"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPlan_OmitsHiddenEntries checks that hidden files, links, directories and parts are omitted, except for parts
// that have changes.
func TestPlan_OmitsHiddenEntries(t *testing.T) {
	t.Parallel()
	mask := t.TempDir()
	plant(t, mask, "etc/all/!")
	for _, p := range []string{"etc/shadow", "h"} {
		if err := unix.Mknod(filepath.Join(mask, p), unix.S_IFCHR, 0); err != nil {
			t.Skip("needs overlayfs-marks: " + err.Error())
		}
	}
	p := HostPlan{
		Parts:    []HostPart{{Path: "/etc"}, {Path: "/etc/all/a"}, {Path: "/etc/all/kept"}, {Path: "/h"}, {Path: "/usr"}},
		Skeleton: []rootspec.Entry{{Path: "/h/x", Link: "/y"}, {Path: "/etc/all"}, {Path: "/etc/ssl"}},
		Files:    []rootspec.File{{Target: "/etc/shadow"}, {Target: "/etc/hosts"}, {Target: "/etc/all/b"}},
	}
	keep := func(part string) bool { return part == "/etc/all/kept" }
	if same, err := p.masked(rootspec.Stack{Layers: []string{mask}}, keep); err != nil || len(same.Parts) != 5 {
		t.Errorf("without a mask: %+v, %v", same, err)
	}
	got, err := p.masked(rootspec.Stack{Layers: []string{mask}, Mask: mask}, keep)
	if err != nil || len(got.Parts) != 3 || len(got.Skeleton) != 2 || len(got.Files) != 1 ||
		got.Files[0].Target != "/etc/hosts" {
		t.Errorf("%+v, %v", got, err)
	}
	// A plan fails if the mask cannot be read.
	if _, err := got.masked(rootspec.Stack{Mask: mask + "/none"}, keep); err == nil {
		t.Error("the plan succeeded without the required mask")
	}
}
