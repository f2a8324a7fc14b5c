//go:build linux && (amd64 || arm64)

package escape_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// TestRootsAsUser runs the tests of fixed roots as a user; see TestAsUser.
func TestRootsAsUser(t *testing.T) {
	t.Parallel()
	needsStatic(t)
	asUser(t, "^Test(HostileRoots|Findings)$")
}

// TestRandomRootsAsUser runs TestRandomRoots as a user; see TestAsUser.
func TestRandomRootsAsUser(t *testing.T) {
	t.Parallel()
	needsStatic(t)
	asUser(t, "^TestRandomRoots$")
}

// finding is a root that once broke a sandbox.
type finding struct {
	name string
	root escape.Root
}

// findings returns the findings, named by their effect.
func findings() []finding {
	const resolv, store = "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt"
	link := func(p, to string) escape.Entry { return escape.Entry{Path: p, Kind: escape.Link, To: to} }
	return []finding{
		{"init wrote to a file of the host", escape.Root{link(resolv, "/var/run/precious"), link("/var/run", "/..$OUT")}},
		{"init made a file of the host", escape.Root{link(resolv, "/var/run/new"), link("/var/run", "/..$OUT/empty")}},
		{"init made directories of the host",
			escape.Root{link(resolv, "/var/run/a/b/new"), link("/var/run", "/..$OUT/empty")}},
		{"init wrote to a file of the host by its working directory",
			escape.Root{link(resolv, "/var/run/precious"), link("/var/run", "/proc/self/cwd/..$OUT")}},
		{"init copied a file of the host into a trust store", escape.Root{link(store, "/..$OUT/secret")}},
		{"init copied a file of the host, by links of directories",
			escape.Root{link("/etc/ssl/certs", "/..$OUT"), link("/etc/ssl/cert.pem", "certs/secret")}},
		{"init looked for Java's stores on the host", escape.Root{link("/opt", "/..$OUT")}},
		{"ids of the host, since the set-up was refused",
			escape.Root{link(resolv, "/var/run/new"), link("/var/run", "/..$OUT/closed")}},
		{"ids of the host, since the set-up could not write",
			escape.Root{link(resolv, "/var/run/resolv.conf"), link("/var/run", "/proc/sys/kernel")}},
		{"ids of the host, since a link loops", escape.Root{link("/run", "run"), link("/tmp", "tmp")}},
		{"ids of the host, since a mount point is a file", escape.Root{{Path: "/sys", Kind: escape.File}}},
		{"init read /dev/zero to its end", escape.Root{link(resolv, "/dev/zero")}},
		{"init waited for a FIFO", escape.Root{{Path: resolv, Kind: escape.FIFO}}},
		{"init waited for a FIFO by a link", escape.Root{link(resolv, "/.hostile/fifo")}},
		{"init read a file of one TiB", escape.Root{{Path: resolv, Kind: escape.Sparse}}},
		{"procfs could be replaced", escape.Root{link("/proc", "/.hostile/dir")}},
		{"procfs was put at a place of the host", escape.Root{link("/proc", "/..$OUT/empty")}},
		{"devices could be replaced", escape.Root{link("/dev", "/.hostile/dir")}},
		{"init covered a read-only file with resolvers", escape.Root{link(resolv, "/srv/kept/file")}},
		{"init covered a file of the host's with resolvers", escape.Root{link(resolv, "/srv/mount/file")}},
		{"init covered a decoy with resolvers", escape.Root{link(resolv, "/srv/decoy")}},
		{"init covered a read-only file with authorities",
			escape.Root{link(store, "/srv/kept/file"), link("/etc/ssl/cert.pem", "/srv/decoy")}},
		{"init covered a file of the host's by links of directories",
			escape.Root{link("/etc/ssl/certs", "/srv/mount"), link("/srv/ca-certificates.crt", "file"),
				link("/etc/ssl/cert.pem", "certs/file")}},
		{"a link for /tmp was a bug in tier gvisor", escape.Root{link("/tmp", "/.hostile/dir")}},
	}
}

// TestFindings tries each finding as an image in each setting, and as changes that a sandbox makes itself in one
// setting, in rotation. With -roots.all it does both in each setting.
func TestFindings(t *testing.T) {
	t.Parallel()
	playFindings(t, settings(), 1)
}

// playFindings tries each finding as an image in one of every share settings.
func playFindings(t *testing.T, all []setting, share int) {
	c := newCorpus(t, all)
	for f, found := range findings() {
		t.Run(strings.ReplaceAll(found.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			for i, s := range c.settings {
				if *rootsAll || (i+f)%share == 0 {
					t.Run(s.name+"/image", func(t *testing.T) { c.trial(t, i).ofImage(t, found.root) })
				}
				if *rootsAll || (i+f+1)%len(c.settings) == 0 {
					t.Run(s.name+"/itself", func(t *testing.T) { c.trial(t, i).ofItself(t, found.root) })
				}
			}
		})
	}
}

// racers is the number of roots that are tried concurrently.
const racers = 4

// TestRandomRoots tries roots of several entries, drawn from the grammar, in every tier of the host, for the time of
// -roots.for. For a root that breaks something, it logs how to try that root alone.
func TestRandomRoots(t *testing.T) {
	t.Parallel()
	c := newCorpus(t, hostKernels())
	if !t.Run("gvisor", func(t *testing.T) {
		kernels := gvisorSettings()
		if kernels == nil {
			t.Skip("needs plain-build: a kernel is started in a root with the static binary alone")
		}
		if err := c.add(t, kernels); err != nil {
			t.Skipf("needs gvisor: %v", err)
		}
	}) {
		return
	}
	seed := *rootsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("the same again: -run '^%s$' -roots.seed=%d", t.Name(), seed)
	end := time.Now().Add(*rootsFor)
	var all4 sync.WaitGroup
	var tried [racers]int
	drawn := make([]atomic.Int64, len(c.settings))
	for r := range racers {
		all4.Go(func() {
			draw := rand.New(rand.NewPCG(seed, uint64(r)))
			for ; !t.Failed() && (tried[r] == 0 || time.Now().Before(end)); tried[r]++ {
				program := make([]byte, 1+2*(1+draw.IntN(6)))
				for i := range program {
					program[i] = byte(draw.Uint32())
				}
				drawn[c.setting(program)].Add(1)
				t.Run(fmt.Sprintf("%x", program), func(t *testing.T) { c.program(t, program) })
			}
		})
	}
	all4.Wait()
	for i, s := range c.settings {
		t.Logf("%d roots in setting %s", drawn[i].Load(), s.name)
	}
}

// setting returns the setting that a program's first byte selects, with all its bits but the last.
func (c *corpus) setting(program []byte) int { return pick(c.settings, int(program[0]>>1)) }

// program tries the root of a program. The first byte selects the setting, and whether the image or the sandbox makes
// the root.
func (c *corpus) program(t testing.TB, program []byte) {
	if len(program) == 0 {
		return
	}
	x, r := c.trial(t, c.setting(program)), escape.Decode(program[1:])
	if program[0]&1 == 0 {
		x.ofImage(t, r)
	} else {
		x.ofItself(t, r)
	}
	if t.Failed() {
		t.Logf("try it alone: put this into testdata/fuzz/FuzzRoot/found, and go test -run FuzzRoot/found .\ngo test fuzz "+
			"v1\n[]byte(%q)", program)
	}
}

// FuzzRoot tries one root. Its seeds are the findings that the grammar can express.
func FuzzRoot(f *testing.F) {
	needsStatic(f)
	place := func(p string) int {
		return slices.IndexFunc(escape.Places, func(x escape.Place) bool { return x.Path == p })
	}
	form := func(kind, to string) int {
		return slices.IndexFunc(escape.Forms, func(x escape.Entry) bool { return x.Kind == kind && x.To == to })
	}
	for i := range rare + 1 { // one of them in tier gvisor
		for _, seed := range [][][2]int{
			// init wrote to the host
			{{place("/etc/resolv.conf"), form(escape.Link, "/var/run/../../..$OUT/precious")},
				{place("/var/run"), form(escape.Link, "/..$OUT/empty")}},
			// init copied from the host
			{{place("/etc/ssl/certs/ca-certificates.crt"), form(escape.Link, "/..$OUT/secret")}},
			// a start lost the shifted ids
			{{place("/etc/resolv.conf"), form(escape.Dir, "")}, {place("/sys"), form(escape.File, "")}},
			// a start used all memory
			{{place("/etc/resolv.conf"), form(escape.Link, "/dev/zero")}},
			// a start waited forever
			{{place("/etc/resolv.conf"), form(escape.FIFO, "")}},
			// the sandbox forged the record
			{{place("/proc"), form(escape.Link, "/.hostile/dir")}},
		} {
			f.Add(append([]byte{byte(2 * i)}, escape.Encode(seed...)...))
		}
	}
	c := newCorpus(f, hostKernels())
	if err := c.add(f, gvisorSettings()); err != nil {
		f.Logf("without tier gvisor: %v", err)
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		c.program(t, program)
	})
}

// TestCanary_DetectsHarm checks that a canary detects reads, changes and additions, and that the inspection finds a
// secret and a missing protection.
func TestCanary_DetectsHarm(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(dir string) error{
		"read":   func(dir string) error { _, err := os.ReadFile(dir + "/secret"); return err },
		"write":  func(dir string) error { return os.WriteFile(dir+"/precious", []byte("x"), 0o666) },
		"create": func(dir string) error { return os.WriteFile(dir+"/empty/new", nil, 0o666) },
		"mkdir":  func(dir string) error { return os.Mkdir(dir+"/empty/new", 0o777) },
		"chmod":  func(dir string) error { return os.Chmod(dir+"/precious", 0o600) },
		"list":   func(dir string) error { _, err := os.ReadDir(dir + "/empty"); return err },
	} {
		c := newCanary(t)
		c.unharmed(t)
		if err := harm(c.dir); err != nil {
			t.Fatal(err)
		}
		var seen recorder
		seen.TB = t
		if c.unharmed(&seen); seen.errors == 0 {
			t.Errorf("%s was not detected", name)
		}
	}
}

// recorder counts errors without failing its test.
type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Errorf(string, ...any) { r.errors++ }

// notPlaces are paths in the source that are not files of the sandbox during set-up, with the reason.
var notPlaces = map[string]string{
	"/bin":              "the conductor's own root, and where commands are looked for",
	"/box":              "the conductor's own root",
	"/view":             "the conductor's own root",
	"/shared":           "the conductor's own root",
	"/state":            "the conductor's own root",
	"/runtime":          "the conductor's own root",
	"/etc/alternatives": "the host, read-only, in the conductor's own root",
	"/etc/ld.so.cache":  "the host, read-only, in the conductor's own root",
	"/nix":              "the host, read-only, in the conductor's own root",
	"/gnu":              "the host, read-only, in the conductor's own root",
	"/lib32":            "the host, read-only, in the conductor's own root",
	"/lib64":            "the host, read-only, in the conductor's own root",
	"/libx32":           "the host, read-only, in the conductor's own root",
}

// ofHost are paths in the source that belong to the host alone: a locked workspace, which has no other root, may read
// below them. What is below them is not covered.
var ofHost = []string{"/usr", "/sbin", "/lib"}

// TestPlaces_CoverSetUpPaths reads the source of the set-up. Each absolute path in it must be at or below a place of
// the table, or be listed as not belonging to the sandbox.
func TestPlaces_CoverSetUpPaths(t *testing.T) {
	t.Parallel()
	known := func(p string) bool {
		if slices.Contains(ofHost, p) {
			return true
		}
		for ; p != "/" && p != "."; p = path.Dir(p) {
			at := func(x escape.Place) bool { return x.Path == p }
			if slices.ContainsFunc(escape.Places, at) || notPlaces[p] != "" {
				return true
			}
		}
		return false
	}
	for _, dir := range []string{"../../box/guest", "../../box/initlink", "../../box/procs", "../../box/execs",
		"../../box/refusals", "../../box/mounts", "../../box/gvisor", "../../box/oci", "../../plan", "../../rootspec"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				p, err := strconv.Unquote(lit.Value)
				if err == nil && isPath(p) && !known(path.Clean(p)) {
					t.Errorf("%s names %q, which is not a place of package escape: add it to Places, or to notPlaces with the reason",
						name, p)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range slices.Concat(plan.TrustStores, plan.JavaStores, rootspec.Reserved) {
		match := func(x escape.Place) bool { ok, _ := path.Match(p, x.Path); return ok }
		if !slices.ContainsFunc(escape.Places, match) {
			t.Errorf("%s is not a place of the table", p)
		}
	}
}

// tops are the top-level directories of a root.
var tops = []string{"bin", "box", "dev", "etc", "gnu", "home", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc",
	"root", "run", "runtime", "sbin", "shared", "srv", "state", "sys", "tmp", "usr", "var", "view"}

// isPath reports whether a string of the source is an absolute path, and not the end of another path, a text or a
// search path.
func isPath(s string) bool {
	top, _, _ := strings.Cut(strings.TrimPrefix(s, "/"), "/")
	return strings.HasPrefix(s, "/") && slices.Contains(tops, top) && !strings.ContainsAny(s, " :*")
}
