//go:build linux && (amd64 || arm64)

package boxtest

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// tree writes files at paths in dir.
func tree(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		p := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("first\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// project adds /home/p with files, in a layer, to a configuration. It returns a directory of the host, beside the run
// directory.
func project(t testing.TB, c *plan.Config) (host string) {
	t.Helper()
	dir := filepath.Dir(c.RunDir)
	layer := filepath.Join(dir, "layer")
	tree(t, layer, "p/vendor/f", "p/vendor/sub/g", "p/lone", "p/src/main", "p/a/b/deep")
	for i := range c.Spec.Overlays {
		if o := &c.Spec.Overlays[i]; o.Target == "/home" {
			o.Lowers = append([]string{layer}, o.Lowers...)
		}
	}
	host = filepath.Join(dir, "host")
	tree(t, host, "data/one", "data/in/two", "file")
	return host
}

func places(paths ...string) (out []rootspec.Place) {
	for _, p := range paths {
		out = append(out, rootspec.Place{Said: p, At: []string{p}})
	}
	return out
}

// changes is a script that tries to change $1, or to replace it. None of its attempts may succeed.
const changes = `
p=$1 dir=$(dirname $1) base=$(basename $1)
tried() { echo "succeeded: $*"; }
try() { "$@" >/dev/null 2>&1 && tried "$@"; true; }
f=$p; [ -d $p ] && f=$p/f
cd /
for w in $f /proc/self/root$f /proc/1/root$f $dir/../$(basename $dir)/$base${f#$p}; do
  (echo evil >>$w) 2>/dev/null && tried append $w
  (echo evil >$w) 2>/dev/null && tried write $w
done
(cd $dir && echo evil >>$base${f#$p}) 2>/dev/null && tried write by a relative name
try truncate -s 0 $f
try chmod 777 $f
try chmod 777 $p
try touch -d 2001-01-01 $f
try touch $p
try rm -f $f; [ -e $f ] || tried rm
try rm -rf $p; [ -e $p ] || tried rm -r
try mv $f $dir/elsewhere
try mv $p $dir/elsewhere
try mv -T $dir/other $p
(echo new >$dir/.new) 2>/dev/null; try mv -T $dir/.new $f; try ln -f $dir/.new $f; try ln -sf /tmp/x $f; try cp --remove-destination $dir/.new $f
ln $f $dir/second 2>/dev/null && tried a second name
try ln $f /tmp/second
rm -f $dir/.new $dir/second /tmp/second
# Directories around it, and others in their place.
a=$dir
while [ $a != / ]; do
  if mv $a $a-moved 2>/dev/null; then
    tried mv $a
    mkdir -p $p; echo evil >$f; mv $a-moved $a-again 2>/dev/null
  fi
  try rmdir $a
  command -v python3 >/dev/null && python3 - $a <<'END'
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
a = sys.argv[1].encode()
import os
os.makedirs(a + b"-other", exist_ok=True) if os.access(os.path.dirname(a) or b"/", os.W_OK) else None
for flags in (0, 2):
    if libc.renameat2(-100, a, -100, a + b"-other", flags) == 0:
        print("succeeded: renameat2", a, flags)
        libc.renameat2(-100, a + b"-other", -100, a, flags)
try: os.rmdir(a + b"-other")
except OSError: pass
END
  a=$(dirname $a)
done
# Mounts.
try mount -o remount,rw $p
try mount -o remount,bind,rw $p
try umount $p
try umount -l $p
try mount --bind /tmp $p
try mount -t tmpfs x $dir
try unshare -m true
try unshare -Urm true
`

// succeeded returns the lines of r that report a change. In tier gvisor a call that changes a mode or time succeeds
// even if the host refuses and nothing changes (Enforced, "attributes"): callers check these attributes separately.
func (tier Tier) succeeded(r Result) (lines []string) {
	for l := range strings.Lines(r.Stdout) {
		attribute := strings.HasPrefix(l, "succeeded: chmod ") || strings.HasPrefix(l, "succeeded: touch ")
		if strings.Contains(l, "succeeded") && (tier.Name != plan.TierGvisor || !attribute) {
			lines = append(lines, l)
		}
	}
	return lines
}

var accesses = []check{
	{"what is read-only cannot be changed", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) {
			project(t, c)
			c.Access.ReadOnly = append(places("/home/p/vendor", "/home/p/lone", "/home/p/a/b/deep"),
				rootspec.Place{Said: "~/x", At: []string{"/home/p/src/none", "/home/p/vendor/sub"}})
		})
		look := "cd /home && find p | sort | xargs stat -c '%n %a %s %Y' && cat p/vendor/f p/lone p/a/b/deep"
		before := b.Sh(t, look).Stdout
		for _, p := range []string{"/home/p/vendor", "/home/p/lone", "/home/p/a/b/deep"} {
			if r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", changes, "sh", p}}); len(tier.succeeded(r)) > 0 ||
				r.Exit.Code != 0 {
				t.Errorf("%s: %+v", p, r)
			}
		}
		after := b.Sh(t, look).Stdout
		// Directories above them have been written to.
		for _, l := range strings.Split(before, "\n") {
			if !strings.HasPrefix(l, "p ") && !strings.HasPrefix(l, "p/a/b ") && !strings.HasPrefix(l, "p/a ") &&
				!strings.Contains(after, l) {
				t.Errorf("%q is gone: %s", l, after)
			}
		}
		// Everything else works as before, including moves of directories that contain no mount.
		if r := b.Sh(t,
			"cd /home/p && echo x >>src/main && mv src src2 && ln src2/main a/link && mv src2 a/b/src && mv a/b/src src && "+
				"rm a/link && echo ok"); r.Stdout != "ok\n" {
			t.Errorf("%+v", r)
		}
		if s := b.Enforced.State("readonly"); s != plan.On {
			t.Errorf("%q in %+v", s, b.Enforced)
		}
	}},
	{"what is read-only cannot be changed from outside either", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) {
			project(t, c)
			c.Access.ReadOnly = places("/home/p/vendor", "/home/p/lone", "/home/p/a/b/deep")
		})
		r := b.inside(t)
		ctx := context.Background()
		write := func(p string) func() error {
			return func() error {
				_, err := r.WriteFile(ctx, p, strings.NewReader("evil"), wire.WriteOptions{})
				return err
			}
		}
		for what, do := range map[string]func() error{
			"write in it":     write("/home/p/vendor/f"),
			"write beside":    write("/home/p/vendor/new"),
			"write a file":    write("/home/p/lone"),
			"write below":     write("/home/p/a/b/deep"),
			"remove in it":    func() error { return r.Remove(ctx, "/home/p/vendor/f", false) },
			"remove":          func() error { return r.Remove(ctx, "/home/p/vendor", true) },
			"remove a file":   func() error { return r.Remove(ctx, "/home/p/lone", false) },
			"remove around":   func() error { return r.Remove(ctx, "/home/p/a", true) },
			"move":            func() error { return r.Move("/home/p/vendor", "/home/p/v2") },
			"move a file":     func() error { return r.Move("/home/p/lone", "/home/p/l2") },
			"move around":     func() error { return r.Move("/home/p/a", "/home/p/a2") },
			"move far around": func() error { return r.Move("/home/p", "/home/p2") },
			"move onto":       func() error { return r.Move("/home/p/src/main", "/home/p/lone") },
			"make in it":      func() error { return r.Mkdir("/home/p/vendor/new", 0o755, false) },
			"unpack in it":    func() error { _, err := r.TarFrom(ctx, "/home/p/vendor", archived(t, "f")); return err },
			"unpack over":     func() error { _, err := r.TarFrom(ctx, "/home/p", archived(t, "lone")); return err },
		} {
			if err := do(); err == nil {
				t.Errorf("%s: it could be done", what)
			} else if k := fault.KindOf(err); k == fault.Internal || fault.HintOf(err) == "" {
				t.Errorf("%s: %v: %v", what, k, err)
			}
		}
		if x := b.Sh(t,
			"cd /home/p && cat vendor/f vendor/sub/g lone a/b/deep && echo evil >>lone || echo evil >>vendor/f || echo evil "+
				">>a/b/deep"); x.Stdout != strings.Repeat("first\n", 4) {
			t.Errorf("%+v", x)
		}
		if err := write("/home/p/src/main")(); err != nil {
			t.Errorf("beside: %v", err)
		}
	}},
	{"nothing but what is writable can be changed", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) {
			project(t, c)
			c.Access.Only = true
			c.Access.Writable = places("/home/p", "/home/none", "/root", "/home/p/src")
			c.Access.ReadOnly = places("/home/p/vendor")
		})
		r := b.Sh(t, `for d in / /home /etc /usr /home/p/vendor /usr/local/bin; do touch $d/new 2>/dev/null && echo "new in $d"; done
			(echo x >>/etc/passwd) 2>/dev/null && echo passwd; mkdir /home/none 2>/dev/null && echo none
			mv /home/p /home/q 2>/dev/null && echo moved
			for d in /home/p /home/p/src /home/p/a/b /tmp /run/lock /dev/shm; do touch $d/new && rm $d/new || echo "not in $d"; done
			mv /home/p/src /home/p/src2 && echo x >/home/p/src2/main && mv /home/p/src2 /home/p/src && cat /home/p/src/main`)
		if r.Stdout != "x\n" || r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
		if s := b.Enforced.State("writable"); s != plan.On {
			t.Errorf("%q in %+v", s, b.Enforced)
		}
	}},
	{"nothing can be changed where nothing is writable", walled, func(t *testing.T, tier Tier) {
		for _, a := range []rootspec.Access{{Only: true}, {ReadOnly: places("/")}} {
			b := tier.Start(t, func(c *plan.Config) { project(t, c); c.Access = a })
			r := b.Sh(t,
				`for d in / /home /home/p /root /etc /usr; do touch $d/new 2>/dev/null && echo "new in $d"; done; echo x >/tmp/x && cat /tmp/x`)
			if r.Stdout != "x\n" {
				t.Errorf("%+v: %+v", a, r)
			}
		}
	}},
	{"mounts of the host", walled, func(t *testing.T, tier Tier) {
		var host string
		b := tier.Start(t, func(c *plan.Config) {
			host = project(t, c)
			if err := os.Symlink("/etc/passwd", host+"/data/link"); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(host+"/data", 0o777); err != nil {
				t.Fatal(err)
			}
			c.Access.ReadOnly = places("/srv/rw/in")
			c.Access.Mounts = []rootspec.HostMount{
				{From: host + "/data", To: "/home/p/src"},
				{From: host + "/data", To: "/home/made/here"},
				{From: host + "/file", To: "/home/p/lone"},
				{From: host + "/file", To: "/srv/file"},
				{From: host + "/data", To: "/srv/rw", Write: true},
			}
		})
		r := b.Sh(t, `cat /home/p/src/one /home/made/here/in/two /home/p/lone /srv/file /srv/rw/one
			for p in /home/p/src/one /home/made/here/one /home/p/lone /srv/file /srv/rw/in/two; do (echo evil >>$p) 2>/dev/null && echo "wrote $p"; done
			for p in /home/p /srv /srv/rw /srv/file /home/made/here; do mv $p $p-moved 2>/dev/null && echo "moved $p"; rm -rf $p-moved; done
			ln -s /etc/shadow /srv/rw/evil; mkdir /srv/rw/dir && echo new >/srv/rw/dir/f && cat /srv/rw/dir/f
			stat -c %u:%g /srv/rw/dir`)
		if want := strings.Repeat("first\n", 5) + "new\n0:0\n"; r.Stdout != want {
			t.Errorf("%+v", r)
		}
		if r := b.Sh(t,
			"mknod /srv/rw/null c 1 3 && echo x >/srv/rw/null; cp /bin/sh /srv/rw/sh && chmod 4755 /srv/rw/sh; ls -d "+
				"/home/p/src/link"); r.Stdout != "/home/p/src/link\n" {
			t.Errorf("%+v", r)
		}
		for p, want := range map[string]string{"data/dir/f": "new\n", "data/one": "first\n", "data/in/two": "first\n",
			"file": "first\n"} {
			if got, err := os.ReadFile(filepath.Join(host, p)); string(got) != want || err != nil {
				t.Errorf("%s: %q, %v", p, got, err)
			}
		}
		// Changes on the host are visible.
		if err := os.WriteFile(host+"/data/later", []byte("later\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := b.Sh(t, "cat /home/p/src/later"); r.Stdout != "later\n" {
			t.Errorf("%+v", r)
		}
		b.Sh(t, "mv /home/made /home/other; rmdir /home/made/here")
		if r := b.Sh(t, "cat /home/made/here/one"); r.Stdout != "first\n" {
			t.Errorf("%+v", r)
		}
		// None of it is in the layers of the root.
		upper := filepath.Join(filepath.Dir(b.Config.RunDir), "home/upper")
		var found []string
		_ = filepath.WalkDir(upper, func(p string, d os.DirEntry, err error) error {
			found = append(found, strings.TrimPrefix(p, upper))
			return err
		})
		if !slices.Equal(found, []string{""}) {
			t.Errorf("the upper has %q", found)
		}
		if s := b.Enforced.State("mount"); s != plan.On {
			t.Errorf("%q in %+v", s, b.Enforced)
		}
	}},
	{"ignored paths are directories outside of the layers", walled, func(t *testing.T, tier Tier) {
		var host string
		ids := "0:0"
		b := tier.Start(t, func(c *plan.Config) {
			host = project(t, c)
			for i, to := range []string{"/home/p/src", "/home/u/made/deps", "/home/far/deps"} {
				from := filepath.Join(host, "ignored"+strconv.Itoa(i))
				if err := os.Mkdir(from, 0o755); err != nil {
					t.Fatal(err)
				}
				if c.Caller.Root && i > 0 {
					ids = "65512:65513"
					if err := os.Chown(from, i<<16-24, i<<16-23); err != nil { // the last is not an ID of the sandbox
						t.Fatal(err)
					}
				}
				c.Access.Ignored = append(c.Access.Ignored, rootspec.HostMount{From: from, To: to, Write: true})
			}
		})
		r := b.Sh(t, `ls -A /home/p/src; stat -c %u:%g /home/u /home/u/made /home/u/made/deps
			printf '#!/bin/sh\necho ran\n' >/home/p/src/tool; chmod 755 /home/p/src/tool; /home/p/src/tool
			test -d /home/far/deps && echo there
			rmdir /home/p/src /home/u/made/deps 2>/dev/null && echo removed
			for p in /home/p/src /home/p /home/u /home/u/made; do mv $p $p-moved 2>/dev/null && echo "moved $p"; done
			mv /home/p/src/tool /home/p/tool && mv /home/p/tool /home/p/src/tool; ls /home/p/src`)
		if want := strings.Repeat(ids+"\n", 3) + "ran\nthere\ntool\n"; r.Stdout != want {
			t.Errorf("%+v", r)
		}
		if _, err := os.Lstat(filepath.Join(host, "ignored0/tool")); err != nil {
			t.Error(err)
		}
	}},
	{"what cannot be protected or mounted is refused", walled, func(t *testing.T, tier Tier) {
		for _, x := range []struct {
			about  string
			access func(host string) rootspec.Access
			kind   fault.Kind
			says   string
		}{
			{"a missing path", func(string) rootspec.Access { return rootspec.Access{ReadOnly: places("/home/p/none")} },
				fault.NotFound, "not found"},
			{"a link", func(string) rootspec.Access { return rootspec.Access{ReadOnly: places("/home/p/link")} },
				fault.Invalid, "link"},
			{"behind a link", func(string) rootspec.Access { return rootspec.Access{ReadOnly: places("/home/p/way/f")} },
				fault.Invalid, "link"},
			{"a writable link",
				func(string) rootspec.Access { return rootspec.Access{Only: true, Writable: places("/home/p/way")} },
				fault.Invalid, "link"},
			{"a place of the box", func(string) rootspec.Access { return rootspec.Access{ReadOnly: places("/proc/sys")} },
				fault.Invalid, "managed by the sandbox"},
			{"a missing source", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/none", To: "/home/m"}}}
			}, fault.NotFound, "source not found"},
			{"a source that is a link", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/link", To: "/home/m"}}}
			}, fault.Invalid, "link"},
			{"a source behind a link", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/link/one", To: "/home/m"}}}
			}, fault.Invalid, "link"},
			{"a socket", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/sock", To: "/home/m"}}}
			}, fault.Invalid, "not a directory or regular file of the host"},
			{"what is the kernel's", func(string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: "/proc/sys", To: "/home/m"}}}
			}, fault.Invalid, "not a directory or regular file of the host"},
			{"at a link", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/data", To: "/home/p/way"}}}
			}, fault.Invalid, "link"},
			{"ignored at a link", func(h string) rootspec.Access {
				return rootspec.Access{Ignored: []rootspec.HostMount{{From: h + "/data", To: "/home/p/way", Write: true}}}
			}, fault.Invalid, "link"},
			{"ignored at a file", func(h string) rootspec.Access {
				return rootspec.Access{Ignored: []rootspec.HostMount{{From: h + "/data", To: "/home/p/lone", Write: true}}}
			}, fault.Invalid, "directory"},
			{"ignored in a read-only path", func(h string) rootspec.Access {
				return rootspec.Access{ReadOnly: places("/home/p"),
					Ignored: []rootspec.HostMount{{From: h + "/data", To: "/home/p/vendor", Write: true}}}
			}, fault.Invalid, "which is read-only"},
			{"a file at a directory", func(h string) rootspec.Access {
				return rootspec.Access{Mounts: []rootspec.HostMount{{From: h + "/file", To: "/home/p/src"}}}
			}, fault.Invalid, "directory"},
			{"two at one place", func(h string) rootspec.Access {
				return rootspec.Access{
					Mounts: []rootspec.HostMount{{From: h + "/data", To: "/home/m"}, {From: h + "/file", To: "/home/m"}}}
			}, fault.Invalid, "duplicate mount"},
		} {
			c := tier.Config(t)
			host := project(t, &c)
			for _, l := range [][2]string{{"vendor/f", "layer/p/link"}, {"vendor", "layer/p/way"}, {"data", "host/link"}} {
				if err := os.Symlink(l[0], filepath.Join(filepath.Dir(c.RunDir), l[1])); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mknod(host+"/sock", unix.S_IFSOCK|0o666, 0); err != nil {
				t.Fatal(err)
			}
			c.Access = x.access(host)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			b, _, err := box.Start(ctx, programtest.Programs(), c)
			cancel()
			if err == nil {
				_ = b.Stop(context.Background(), 0)
				b.Close()
				t.Errorf("%s: it was started", x.about)
				continue
			}
			if fault.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.says) || fault.HintOf(err) == "" {
				t.Errorf("%s: %s: %v (%s)", x.about, fault.KindOf(err), err, fault.HintOf(err))
			}
		}
	}},
}

// archived returns an archive with one file.
func archived(t testing.TB, name string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	content := "evil\n"
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x00")
	copy(h[124:], "0000000000"+strconv.FormatInt(int64(len(content)), 8)+"\x00")
	copy(h[136:], "00000000000\x00")
	h[156] = '0'
	copy(h[257:], "ustar\x0000")
	sum := 8 * int(' ')
	for _, c := range h {
		sum += int(c)
	}
	o := strconv.FormatInt(int64(sum), 8)
	copy(h[148:], strings.Repeat("0", 6-len(o))+o+"\x00 ")
	b.Write(h)
	body := make([]byte, 512)
	copy(body, content)
	b.Write(body)
	b.Write(make([]byte, 1024))
	return &b
}
