//go:build linux && (amd64 || arm64)

package box_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// upperOf returns the host directory with the upper layer of the overlay at top.
func upperOf(c *plan.Config, top string) string {
	for _, o := range c.Spec.Overlays {
		if o.Target == top {
			return o.Upper
		}
	}
	panic("no overlay at " + top)
}

// place creates the entry of a sandbox's root at name, a path of the host.
func place(t *testing.T, name string, create func(string) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := create(name); err != nil {
		t.Fatal(err)
	}
}

func linkTo(target string) func(string) error {
	return func(name string) error { return os.Symlink(target, name) }
}

// canaries is a directory of the host with a secret that all users can read and write.
func canaries(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "canaries")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	place(t, filepath.Join(dir, "precious"),
		func(name string) error { return os.WriteFile(name, []byte("HOSTSECRET\n"), 0o666) })
	return dir
}

func intact(t *testing.T, dir string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "precious")); err != nil || string(got) != "HOSTSECRET\n" {
		t.Errorf("a file of the host contains %q: %v", got, err)
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("the directory of the host contains %v: %v", all, err)
	}
}

// networked is supervised with a network, so that there is a resolver file.
func networked(t testing.TB) plan.Config {
	c := supervised(t)
	c.Phases = []plan.Phase{phase(t, time.Time{}, "web.example:443")}
	return c
}

func TestSetup_WritesNothingWhereALinkLeadsOutOfTheRoot(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"precious", "new", "deep/new"} {
		dir := canaries(t)
		b := (boxtest.Tier{Config: networked}).Start(t, func(c *plan.Config) {
			c.Spec.Skeleton = append(c.Spec.Skeleton, rootspec.Entry{Path: "/var/run", Link: "/.." + dir})
			place(t, filepath.Join(upperOf(c, "/etc"), "resolv.conf"), linkTo("/var/run/"+name))
		})
		if r := b.Sh(t, "cat /etc/resolv.conf"); strings.Contains(r.Stdout, "HOSTSECRET") {
			t.Errorf("%s: %+v", name, r)
		}
		intact(t, dir)
	}
}

func TestSetup_CopiesNoSecretIntoTheTrustStore(t *testing.T) {
	t.Parallel()
	dir := canaries(t)
	b := (boxtest.Tier{Config: inspected}).Start(t, func(c *plan.Config) {
		certs := filepath.Join(upperOf(c, "/etc"), "ssl")
		place(t, certs, func(name string) error { return os.Mkdir(name, 0o755) })
		if err := unix.Setxattr(certs, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			t.Skip("needs xattr: " + err.Error())
		}
		place(t, filepath.Join(certs, "certs/ca-certificates.crt"), linkTo("/.."+dir+"/precious"))
		place(t, filepath.Join(certs, "cert.pem"),
			func(name string) error { return os.WriteFile(name, []byte("NOCERTIFICATE\n"), 0o644) })
		place(t, filepath.Join(upperOf(c, "/etc"), "ssh"), func(name string) error { return os.Mkdir(name, 0o755) })
		for _, name := range []string{"ssh/ssh_config", "ssh/ssh_known_hosts"} {
			place(t, filepath.Join(upperOf(c, "/etc"), name), linkTo("/.."+dir+"/precious"))
		}
	})
	r := b.Sh(t, "cat /run/coppice-ca/*")
	if strings.Contains(r.Stdout, "HOSTSECRET") || strings.Contains(r.Stdout, "NOCERTIFICATE") ||
		!strings.Contains(r.Stdout, "BEGIN CERTIFICATE") {
		t.Errorf("%+v", r)
	}
	intact(t, dir)
}

func TestSetup_StartsWhateverTheResolverFileIs(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(string) error{
		"zeros":     linkTo("/dev/zero"),
		"pipe":      func(name string) error { return unix.Mkfifo(name, 0o666) },
		"directory": func(name string) error { return os.Mkdir(name, 0o755) },
		"loop":      linkTo("/etc/resolv.conf"),
		"long":      linkTo(strings.Repeat("/d", 2000)),
		"process":   linkTo("/proc/self/environ"),
		"init":      linkTo("/proc/1/root/etc/resolv.conf"),
		"reserved":  linkTo("/run/coppice-ca"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: networked}).Start(t, func(c *plan.Config) {
				place(t, filepath.Join(upperOf(c, "/etc"), "resolv.conf"), create)
			})
			if r := b.Sh(t, "echo started"); r.Stdout != "started\n" {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestSetup_MakesTheResolverFileThatALinkIntoRunNames(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"/run/systemd/resolve/stub-resolv.conf", "../run/systemd/resolve/stub-resolv.conf",
		"/var/run/resolv.conf"} {
		b := (boxtest.Tier{Config: networked}).Start(t, func(c *plan.Config) {
			c.Spec.Skeleton = append(c.Spec.Skeleton, rootspec.Entry{Path: "/var/run", Link: "/run"})
			place(t, filepath.Join(upperOf(c, "/etc"), "resolv.conf"), linkTo(target))
		})
		if r := b.Sh(t, "grep -c nameserver /etc/resolv.conf"); r.Exit.Code != 0 {
			t.Errorf("%s: %+v", target, r)
		}
	}
}

func TestSetup_RefusesMountPointsThatAreLinks(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"proc", "dev", "sys", "run", "tmp"} {
		c := config(t)
		base := filepath.Join(filepath.Dir(c.RunDir), "base")
		place(t, filepath.Join(base, "elsewhere"), func(name string) error { return os.Mkdir(name, 0o755) })
		place(t, filepath.Join(base, point), linkTo("elsewhere"))
		for _, e := range c.Spec.Skeleton {
			place(t, base+e.Path, linkTo(e.Link))
		}
		for _, o := range c.Spec.Overlays {
			place(t, base+o.Target, func(name string) error { return os.Mkdir(name, 0o755) })
		}
		root := rootspec.Overlay{Target: "/", Lowers: []string{base}, Upper: base + "-upper", Work: base + "-work"}
		for _, d := range []string{root.Upper, root.Work} {
			place(t, d, func(name string) error { return os.Mkdir(name, 0o755) })
		}
		c.Spec.Skeleton, c.Spec.Overlays = nil, append([]rootspec.Overlay{root}, c.Spec.Overlays...)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		b, _, err := box.Start(ctx, programtest.Programs(), c)
		if err == nil {
			t.Errorf("/%s is a link, and the sandbox started", point)
			_ = b.Stop(ctx, 0)
		} else if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "/"+point) || fault.HintOf(err) == "" {
			t.Errorf("/%s: %v, hint %q", point, err, fault.HintOf(err))
		}
		cancel()
	}
}

// inspected is supervised with a gate whose certificate the sandbox trusts.
func inspected(t testing.TB) plan.Config {
	c := supervised(t)
	c.Phases = []plan.Phase{
		phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, ports: [443], methods: [GET]}]")}
	return c
}

// TestSetup_OpensNoDecoy places links to a honeytoken where a start reads files of the sandbox. Opening it would count
// as an access by the sandbox, and stop it.
func TestSetup_OpensNoDecoy(t *testing.T) {
	t.Parallel()
	const at = "/home/decoy_key"
	for _, name := range []string{"passwd", "group", "ssl/cert.pem", "pki/tls/certs/ca-bundle.crt",
		"ssl/certs/java/cacerts"} {
		t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: inspected}).Start(t, func(c *plan.Config) {
				c.Access.Decoys = []rootspec.Decoy{{At: at, Text: []byte("a key\n"), Mode: 0o600}}
				c.OnTouch = plan.TouchStop
				place(t, filepath.Join(upperOf(c, "/etc"), name), linkTo(at))
			})
			if r := b.Sh(t, "echo started"); r.Stdout != "started\n" {
				t.Errorf("%+v", r)
			}
			if r := b.Sh(t, "cat "+at+"; exec sleep 1000"); r.Exit.Code != 137 ||
				!strings.Contains(r.Exit.Message, "the honeytoken "+at+" was opened") {
				t.Errorf("the decoy is not watched: %+v", r)
			}
			<-b.Gone()
			evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetDecoy}})
			if err != nil || len(evs) != 1 || evs[0].Count > 1 {
				t.Errorf("%+v, %v: want one event, for the command", evs, err)
			}
		})
	}
}

// TestSetup_LooksForJavaWithinBounds creates many names for one trust store of Java, more than a start can open in
// time.
func TestSetup_LooksForJavaWithinBounds(t *testing.T) {
	t.Parallel()
	b := (boxtest.Tier{Config: inspected}).Start(t, func(c *plan.Config) {
		dir := filepath.Dir(c.RunDir)
		o := rootspec.Overlay{Target: "/opt", Lowers: []string{dir + "/opt/lower"}, Upper: dir + "/opt/upper",
			Work: dir + "/opt/work"}
		for _, d := range append(o.Lowers, o.Upper, o.Work) {
			place(t, d, func(name string) error { return os.Mkdir(name, 0o755) })
		}
		c.Spec.Overlays = append(c.Spec.Overlays, o)
		place(t, o.Upper+"/one/lib/security/cacerts",
			func(name string) error { return os.WriteFile(name, []byte("no store"), 0o644) })
		place(t, o.Upper+"/l/0", linkTo("/opt/one"))
		for i := range 35 { // as many links as are followed, each as long as possible
			place(t, fmt.Sprintf("%s/l/%d", o.Upper, i+1), linkTo(strings.Repeat("./", 2030)+strconv.Itoa(i)))
		}
		for i := range 256 {
			place(t, fmt.Sprintf("%s/many/%d", o.Upper, i), linkTo("/opt/l/35"))
			place(t, fmt.Sprintf("%s/link%d", o.Upper, i), linkTo("/opt/many"))
		}
	})
	if r := b.Sh(t, "echo started"); r.Stdout != "started\n" {
		t.Errorf("%+v", r)
	}
	i := slices.IndexFunc(b.Enforced.Items, func(i plan.Item) bool { return i.Name == "java" })
	if i < 0 || b.Enforced.Items[i].State != plan.Off ||
		!strings.Contains(b.Enforced.Items[i].Detail, "the search stops after 512 names") {
		t.Errorf("%+v", b.Enforced.Items)
	}
}
