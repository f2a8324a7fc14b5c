//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// rootOf creates a root with files, whose names are absolute.
func rootOf(t *testing.T, files map[string]string) (dir string, root rootspec.Files) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root.Regions = []rootspec.Region{{At: "/", Open: true}}
	for at, fd := range map[string]*int{dir: &root.Root, "/proc": &root.Proc} {
		var err error
		if *fd, err = unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(*fd) })
	}
	return dir, root
}

// storesIn returns the stores of a root as text: names and content.
func storesIn(t *testing.T, root rootspec.Files) (found []string, all javaStores) {
	t.Helper()
	all, err := findJava(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.found {
		found = append(found, fmt.Sprintf("%q %.9s", s.Paths, s.Content))
	}
	return found, all
}

func TestJavaStores_AreFoundInsideRootOnly(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/cacerts", []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, root := rootOf(t, map[string]string{
		"/etc/ssl/certs/java/cacerts":                 "system",
		"/usr/lib/jvm/a/lib/security/cacerts":         "own",
		"/usr/lib/jvm/\xff\nb/lib/security/cacerts":   "any bytes",
		"/usr/lib/jvm/same/jre/lib/security/cacerts":  "own",
		"/usr/local/decoy/lib/security/cacerts":       "decoy",
		"/opt/key":                                    "decoy",
		"/opt/directory/lib/security/cacerts/cacerts": "too deep",
		"/opt/large/lib/security/cacerts":             "",
		"/opt/a/b/lib/security/cacerts":               "image",
		"/opt/a/lib/security/other":                   "no store",
	})
	place := func(name string, how func(at string) error) {
		t.Helper()
		at := filepath.Join(dir, name, "lib/security/cacerts")
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := how(at); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"/opt/link": "/etc/ssl/certs/java/cacerts", "/opt/out": outside + "/cacerts",
		"/opt/up":   "../../../../../../../../../.." + outside + "/cacerts",
		"/opt/loop": "cacerts", "/opt/magic": "/proc/self/cwd", "/opt/nothing": "/nothing",
	} {
		place(name, func(at string) error { return os.Symlink(to, at) })
	}
	place("/opt/fifo", func(at string) error { return unix.Mkfifo(at, 0o644) })
	if err := os.Truncate(dir+"/opt/large/lib/security/cacerts", limit.TrustStoreBytes+1); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for _, name := range []string{"/usr/local/decoy/lib/security/cacerts", "/opt/key"} {
		decoy := dir + name // the path as the kernel reports it
		if _, err := unix.InotifyAddWatch(watch, decoy, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		root.Regions = append(root.Regions, rootspec.Region{At: decoy, Decoy: true})
	}
	found, all := storesIn(t, root)
	want := []string{
		`["/etc/ssl/certs/java/cacerts" "/opt/link/lib/security/cacerts"] system`,
		`["/usr/lib/jvm/a/lib/security/cacerts" "/usr/lib/jvm/same/jre/lib/security/cacerts"] own`,
		`["/usr/lib/jvm/\xff\nb/lib/security/cacerts"] any bytes`,
		`["/opt/a/b/lib/security/cacerts"] image`,
	}
	if !reflect.DeepEqual(found, want) || len(all.left) > 0 || all.more != "" {
		t.Errorf("found %q, left %q, more %q, want %q", found, all.left, all.more, want)
	}
	if n, _ := unix.Read(watch, make([]byte, 64<<10)); n > 0 {
		t.Error("a decoy was opened")
	}
}

func TestJavaStores_AreBounded(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range mostJava + 3 {
		files[fmt.Sprintf("/opt/%02d/lib/security/cacerts", i)] = fmt.Sprint("store ", i)
	}
	_, root := rootOf(t, files)
	found, all := storesIn(t, root)
	if len(found) != mostJava || len(all.left) > 0 || all.more != "since the limit is 16" {
		t.Errorf("found %d stores, left %q, more %q", len(found), all.left, all.more)
	}
	half := strings.Repeat("x", limit.TrustStoreBytes/2)
	_, root = rootOf(t, map[string]string{
		"/opt/a/lib/security/cacerts": "first" + half, "/opt/b/lib/security/cacerts": "second" + half,
		"/opt/c/lib/security/cacerts": "third",
	})
	found, all = storesIn(t, root)
	if len(found) != 2 || !reflect.DeepEqual(all.left, []string{`"/opt/b/lib/security/cacerts"`}) {
		t.Errorf("found %q, left %q", found, all.left)
	}
}

// TestJavaStores_OpenFewNames creates links at each level of a pattern, so that the number of names is the square of
// that in a directory.
func TestJavaStores_OpenFewNames(t *testing.T) {
	t.Parallel()
	for what, to := range map[string]string{"one store": "/opt/one", "no store": "/nothing"} {
		dir, root := rootOf(t, map[string]string{"/opt/one/lib/security/cacerts": "store", "/opt/many/x": ""})
		for i := range 1000 {
			for name, to := range map[string]string{"/opt/many/": to, "/opt/": "/opt/many"} {
				if err := os.Symlink(to, fmt.Sprint(dir, name, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		s := javaSearch{files: root, seen: map[string]bool{}}
		if err := s.expand(t.Context(), "/", []string{"opt", "*", "*", "lib", "security", "cacerts"}); err != nil {
			t.Fatal(err)
		}
		if s.all.more == "" || s.opened > mostNames || len(s.seen) > mostNames+1 {
			t.Errorf("%s: opened %d of %d names, %q", what, s.opened, len(s.seen), s.all.more)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := findJava(ctx, root); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: cancelled search: %v", what, err)
		}
	}
}

func TestTrustJava_ReportsUnsupportedStores(t *testing.T) {
	t.Parallel()
	body := "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00"
	sum := sha1.Sum([]byte("\x00c\x00h\x00a\x00n\x00g\x00e\x00i\x00tMighty Aphrodite" + body))
	_, root := rootOf(t, map[string]string{
		"/opt/a/lib/security/cacerts":     body + string(sum[:]),
		"/opt/b\n/lib/security/cacerts":   "something else",
		"/opt/b/jre/lib/security/cacerts": "something else",
	})
	g, ca := plan.Guest{}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("the gate")})
	var e plan.Enforced
	if err := trust(&g, &e, ca, func() (javaStores, error) { return findJava(t.Context(), root) }); err != nil {
		t.Fatal(err)
	}
	if len(g.Java) != 1 || string(g.Java[0].Paths[0]) != "/opt/a/lib/security/cacerts" ||
		!bytes.Contains(g.Java[0].Content, []byte("the gate")) {
		t.Errorf("%q", g.Java)
	}
	if got := e.State("java"); got != plan.Off ||
		!strings.Contains(e.Items[len(e.Items)-1].Detail,
			`by "/opt/b\n/lib/security/cacerts" nor by "/opt/b/jre/lib/security/cacerts", which`) {
		t.Errorf("%+v", e)
	}

	e = plan.Enforced{}
	if err := (javaStores{left: []string{`"/a"`}, more: "since the limit is 16"}).trust(&g, &e); err != nil {
		t.Fatal(err)
	}
	if want := `by "/a", which are not trust stores or have another password; nor by further stores, since the limit is 16; import its certificate`; !strings.Contains(e.Items[0].Detail, want) {
		t.Errorf("%+v, want %q", e.Items, want)
	}

	// Without inspection, the gate has no authority.
	g, e = plan.Guest{}, plan.Enforced{}
	if err := trust(&g, &e, nil, nil); err != nil || g.Java != nil || e.Items != nil {
		t.Errorf("%+v %+v %v", g, e, err)
	}
}

// TestJavaStores_FitIntoAMessage exists because a message to init has at most 16 MiB (package initlink), in tier gvisor
// too.
func TestJavaStores_FitIntoAMessage(t *testing.T) {
	t.Parallel()
	g := plan.Guest{Java: []plan.JavaStore{{Content: bytes.Repeat([]byte{0xff}, mostBytes+mostJava*(4<<10))}}}
	for range mostJava {
		g.Java[0].Paths = append(g.Java[0].Paths, bytes.Repeat([]byte{'x'}, unix.PathMax))
	}
	if b, err := json.Marshal(g); err != nil || len(b) > 12<<20 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestRetrust_SupportsOlderInit covers an init from an older build, which refuses a message with a field that it does
// not know.
func TestRetrust_SupportsOlderInit(t *testing.T) {
	t.Parallel()
	for name, knows := range map[string]bool{"of this build": true, "older": false} {
		k, far := halfKeeper(t)
		served := make(chan struct{})
		go func() { k.serve(); close(served) }()
		asked := make(chan []initlink.Rekey, 1)
		go func() {
			var all []initlink.Rekey
			defer func() { asked <- all }()
			for {
				m, err := far.Recv()
				if err != nil {
					return
				}
				var r initlink.Rekey
				if err := m.Obey(&r); err != nil {
					return
				}
				all = append(all, r)
				done := initlink.Rekeyed{Held: true}
				if len(r.Java) > 0 && !knows {
					done = initlink.Rekeyed{Err: &wire.Error{Kind: string(fault.Version), Message: "unknown field"}}
				}
				if err := far.Send(initlink.MsgRekeyed, done); err != nil {
					return
				}
			}
		}()
		e := plan.Enforced{Items: []plan.Item{{Name: "java", State: plan.Off, Detail: "one store"}}}
		g := plan.Guest{CA: []byte("the gate"), Java: []plan.JavaStore{{Content: []byte("store")}}}
		if err := k.retrust(g, &e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		far.Shutdown()
		<-served
		all := <-asked
		if last := all[len(all)-1]; string(last.CA) != "the gate" || (len(last.Java) == 1) != knows {
			t.Errorf("%s: init received %+v", name, all)
		}
		if older := strings.Contains(e.Items[0].Detail, "of an older coppice"); len(e.Items) != 1 || older == knows {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
