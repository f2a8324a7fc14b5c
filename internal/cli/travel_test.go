//go:build linux

package cli_test

import (
	"bytes"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/registrytest"
)

// traveller is a user with their own home, daemon and clone.
type traveller struct {
	t    *testing.T
	env  []string
	top  string // root of the work tree
	home string
}

// travellers are two users with clones of one repository.
type travellers struct {
	alice, bob *traveller
	bare       string
}

// newTravellers creates a bare repository, and two clones of the URL that serve returns for it.
func newTravellers(t *testing.T, serve func(bare string) (url string)) *travellers {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: for repositories")
	}
	// A sandbox on the host has its own /tmp.
	root, err := os.MkdirTemp("/var/tmp", "coppice-travel-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(p, 0o700) // masks have directories without permissions
			}
			return err
		})
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	w := &travellers{bare: filepath.Join(root, "remote.git")}
	first := w.traveller(t, root, "first")
	first.git(root, "init", "-q", "--bare", w.bare)
	first.git(w.bare, "config", "http.receivepack", "true")
	first.git(root, "init", "-q", first.top)
	first.write("a.txt", "one\n")
	first.write("src/b.txt", "b\n")
	first.git(first.top, "add", "-A")
	first.git(first.top, "commit", "-qm", "first")
	first.git(first.top, "push", "-q", w.bare, "HEAD:refs/heads/main")
	url := serve(w.bare)
	w.alice, w.bob = w.traveller(t, root, "alice"), w.traveller(t, root, "bob")
	for _, p := range []*traveller{w.alice, w.bob} {
		p.git(root, "clone", "-q", url, p.top)
		t.Cleanup(func() {
			p.try("rm", "--force", "fix-auth", "fixed")
			p.try("serve", "--stop")
		})
	}
	return w
}

func (w *travellers) traveller(t *testing.T, root, name string) *traveller {
	t.Helper()
	p := &traveller{t: t, home: filepath.Join(root, name), top: filepath.Join(root, name, "proj")}
	for _, d := range []string{p.home, filepath.Join(p.home, "me")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	config := "[user]\n\tname = " + name + "\n\temail = " + name +
		"@example.org\n[init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow = always\n"
	if err := os.WriteFile(filepath.Join(p.home, "me/.gitconfig"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = append(os.Environ(), "COPPICE_HOME="+filepath.Join(p.home, "store"), "COPPICE_IDLE=60s",
		"HOME="+filepath.Join(p.home, "me"), "XDG_CONFIG_HOME="+filepath.Join(p.home, "me/.config"),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "LANG=C.UTF-8", "GORACE=atexit_sleep_ms=0")
	return p
}

// in runs a program in a directory, and returns its stdout and stderr.
func (p *traveller) in(dir, program string, args ...string) (out, said string, err error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, p.env
	var o, s bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &s
	err = cmd.Run()
	return o.String(), s.String(), err
}

func (p *traveller) git(dir string, args ...string) string {
	p.t.Helper()
	out, said, err := p.in(dir, "git", args...)
	if err != nil {
		p.t.Fatalf("git %q: %v\n%s", args, err, said)
	}
	return strings.TrimSuffix(out, "\n")
}

func (p *traveller) try(args ...string) (out, said string, err error) {
	return p.in(p.top, "coppice", args...)
}

// run runs coppice, which must succeed.
func (p *traveller) run(args ...string) string {
	p.t.Helper()
	out, said, err := p.try(args...)
	if err != nil {
		p.t.Fatalf("coppice %q: %v\n%s", args, err, said)
	}
	return out
}

// refused runs coppice, which must fail with an error that contains why. It must leave the clone unchanged, except
// for the proposal of a push.
func (p *traveller) refused(why string, args ...string) {
	p.t.Helper()
	before := p.git(p.top, "for-each-ref") + p.git(p.top, "status", "--porcelain")
	out, said, err := p.try(args...)
	if err == nil || !strings.Contains(said, why) {
		p.t.Errorf("coppice %q: %v, want an error with %q:\n%s%s", args, err, why, out, said)
	}
	if now := p.git(p.top, "for-each-ref") + p.git(p.top, "status", "--porcelain"); now != before && args[1] != "push" {
		p.t.Errorf("coppice %q changed the clone:\n%s\nbefore:\n%s", args, now, before)
	}
	if strings.ContainsAny(said, "\x1b\x07") {
		p.t.Errorf("coppice %q prints control bytes: %q", args, said)
	}
}

func (p *traveller) write(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.top, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *traveller) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.top, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// work creates a sandbox for alice with committed and uncommitted changes.
func (w *travellers) work() {
	w.alice.t.Helper()
	w.alice.run("create", "fix-auth", "--repo", ".", "-q")
	w.alice.run("exec", "fix-auth", "--", "sh", "-ec",
		"cd "+w.alice.top+
			"; echo two >>a.txt; git add a.txt; git -c user.name=Agent -c user.email=a@example.org commit -qm 'second'; echo "+
			"new >src/new.txt; echo all: >Makefile")
}

// review pushes a proposal, and reviews and applies it as a colleague does.
func (w *travellers) review() {
	t, bob := w.bob.t, w.bob
	t.Helper()
	w.work()
	w.alice.refused("--trust Makefile", "git", "push", "fix-auth")
	w.alice.run("git", "push", "origin", "fix-auth", "--trust", "Makefile", "-m", "Refuse empty tokens")
	if out := bob.run("git", "pull"); !strings.Contains(out, "fix-auth") {
		t.Errorf("git pull lists %q", out)
	}
	var got wire.Received
	if err := json.Unmarshal([]byte(bob.run("git", "pull", "fix-auth", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Bound || !got.Signer.First || len(got.Differs) > 0 || got.Files != 3 || len(got.Marks) != 1 ||
		got.Marks[0].Path != "Makefile" || got.Title != "Refuse empty tokens" || got.Records < 5 {
		t.Errorf("%+v", got)
	}
	if out := bob.run("diff", "origin/fix-auth", "--name-status"); out != "A\tMakefile\nM\ta.txt\nA\tsrc/new.txt\n" {
		t.Errorf("the diff is %q", out)
	}
	if out := bob.run("diff", "origin/fix-auth", "--", "a.txt"); !strings.Contains(out, "+two\n") ||
		strings.Contains(out, "new.txt") {
		t.Errorf("the diff is %q", out)
	}
	if out := bob.run("system", "verify", "origin/fix-auth"); !strings.Contains(out, "complete and unmodified") ||
		!strings.Contains(out, "unchanged since") {
		t.Errorf("system verify printed %q", out)
	}
	if out := bob.run("snapshot", "show", "origin/fix-auth"); !strings.Contains(out, "## What was run") {
		t.Errorf("snapshot show printed %q", out)
	}
	bob.refused("--trust Makefile", "git", "apply", "origin/fix-auth")
	bob.run("git", "apply", "origin/fix-auth", "--trust", "Makefile", "-m", "Apply it")
	if bob.read("a.txt") != "one\ntwo\n" || bob.read("src/new.txt") != "new\n" ||
		bob.git(bob.top, "log", "-1", "--format=%s %an") != "Apply it bob" ||
		bob.git(bob.top, "status", "--porcelain") != "" {
		t.Errorf("it was not applied: %s", bob.git(bob.top, "log", "-2", "--stat"))
	}
	if out := bob.run("ledger", "show", "host"); !strings.Contains(out, "apply") {
		t.Errorf("the audit log does not record the apply: %q", out)
	}
	// The next push replaces the proposal.
	w.alice.run("exec", "fix-auth", "--", "sh", "-ec", "cd "+w.alice.top+"; echo three >>a.txt")
	w.alice.run("git", "push", "fix-auth", "--trust-all")
	bob.run("git", "pull", "origin", "fix-auth")
	if out := bob.run("diff", "origin/fix-auth", "--", "a.txt"); !strings.Contains(out, "+three\n") {
		t.Errorf("the second diff is %q", out)
	}
	if out, err := exec.Command("git", "-C", bob.top, "fsck", "--strict").CombinedOutput(); err != nil {
		t.Errorf("fsck: %v\n%s", err, out)
	}
}

func TestProposal_ViaPath(t *testing.T) {
	t.Parallel()
	newTravellers(t, func(bare string) string { return bare }).review()
}

// httpBackend serves the repositories in a directory with git-http-backend. With a password, it requires
// authentication.
func httpBackend(t *testing.T, dir, password string) (url string) {
	t.Helper()
	out, err := exec.Command("git", "--exec-path").Output()
	backend := filepath.Join(strings.TrimSpace(string(out)), "git-http-backend")
	if _, serr := os.Stat(backend); err != nil || serr != nil {
		t.Skip("needs git-http-backend: to serve repositories")
	}
	h := http.Handler(
		&cgi.Handler{Path: backend,
			Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
				"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}, Stderr: &bytes.Buffer{}})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		if password != "" && subtle.ConstantTimeCompare([]byte(given), []byte(password)) == 0 {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who is there?", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestProposal_ViaHTTP(t *testing.T) {
	t.Parallel()
	newTravellers(t, func(bare string) string { return httpBackend(t, filepath.Dir(bare), "") + "/remote.git" }).review()
}

// TestProposal_ViaHTTPWithPassword uses the credentials of the user on this host, which a credential helper supplies.
func TestProposal_ViaHTTPWithPassword(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse"
	url := ""
	w := newTravellers(t, func(bare string) string {
		url = httpBackend(t, filepath.Dir(bare), secret) + "/remote.git"
		return bare
	})
	for _, p := range []*traveller{w.alice, w.bob} {
		p.git(p.top, "remote", "set-url", "origin", url)
	}
	w.bob.refused("git cannot reach origin", "git", "pull")
	for _, p := range []*traveller{w.alice, w.bob} {
		p.git(p.top, "config", "--global", "credential.helper", "!f() { echo username=u; echo password="+secret+"; }; f")
	}
	w.review()
	// An error never includes the password of a URL.
	w.bob.git(w.bob.top, "remote", "set-url", "origin", strings.Replace(url, "http://", "http://u:other-secret@", 1))
	w.bob.git(w.bob.top, "config", "--global", "--unset", "credential.helper")
	out, said, err := w.bob.try("git", "pull")
	if err == nil || strings.Contains(out+said, "other-secret") {
		t.Errorf("%v: %s%s", err, out, said)
	}
}

// TestProposal_ViaSSH starts an SSH server with its own configuration, keys and port.
func TestProposal_ViaSSH(t *testing.T) {
	t.Parallel()
	sshd := "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		t.Skip("needs sshd: to serve repositories")
	}
	if os.Getuid() == 0 {
		if _, err := os.Stat("/run/sshd"); err != nil {
			t.Skip("needs sshd: its directory /run/sshd")
		}
	}
	w := newTravellers(t, func(bare string) string { return bare })
	dir := filepath.Dir(w.bare)
	if _, said, err := w.alice.in(dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		filepath.Join(dir, "host")); err != nil {
		t.Fatal(said)
	}
	if _, said, err := w.alice.in(dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		filepath.Join(dir, "user")); err != nil {
		t.Fatal(said)
	}
	// sshd -i serves one connection on its standard input: no port, no daemon.
	config := fmt.Sprintf(
		"HostKey %s/host\nAuthorizedKeysFile %s/user.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication "+
			"no\nPermitRootLogin yes\nPidFile none\n", dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*traveller{w.alice, w.bob} {
		p.git(p.top, "remote", "set-url", "origin", "ssh://there"+w.bare)
		p.git(p.top, "config", "core.sshCommand",
			fmt.Sprintf(
				"ssh -F /dev/null -i %s/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "+
					"-o LogLevel=ERROR -o 'ProxyCommand=%s -i -f %s/sshd_config -E %s/sshd.log'", dir, sshd, dir, dir))
	}
	w.review()
}

// TestPush_LayersWithHistory pulls layers with their history into a colleague's clone, which has another path.
func TestPush_LayersWithHistory(t *testing.T) {
	t.Parallel()
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	w.alice.run("exec", "fix-auth", "--", "sh", "-ec", "cd "+w.alice.top+"; rm src/b.txt; echo late >late.txt")
	w.alice.refused("--max-layers", "git", "push", "fix-auth", "--trust-all", "--with-layers", "--max-layers", "100")
	w.alice.run("git", "push", "fix-auth", "--trust-all", "--with-layers")
	w.bob.run("git", "pull", "fix-auth", "--with-layers", "--as", "fixed")
	inside := func(script string) string {
		return w.bob.run("exec", "fixed", "--", "sh", "-c", "cd "+w.bob.top+" && "+script)
	}
	if out := inside("cat a.txt late.txt; ls src"); out != "one\ntwo\nlate\nnew.txt\n" {
		t.Errorf("the sandbox has %q", out)
	}
	if out := inside("ls -d " + w.alice.top + " 2>&1; true"); !strings.Contains(out, "proj") {
		t.Logf("the path of the author's clone: %q", out)
	}
	if out := w.bob.run("diff", "fixed",
		"--name-status"); out != "A\tMakefile\nM\ta.txt\nA\tlate.txt\nD\tsrc/b.txt\nA\tsrc/new.txt\n" {
		t.Errorf("the diff is %q", out)
	}
	if out := inside("git log --format=%s | head -1"); out != "second\n" {
		t.Errorf("the last commit is %q", out)
	}
	w.bob.run("rewind", "fixed", "HEAD~1")
	if out := inside("ls src; cat late.txt 2>/dev/null; true"); out != "b.txt\nnew.txt\n" {
		t.Errorf("the previous snapshot has %q", out)
	}
	w.bob.refused("sandbox fixed already exists", "git", "pull", "fix-auth", "--with-layers", "--as", "fixed")
	if w.bob.read("a.txt") != "one\n" {
		t.Error("the work tree was changed")
	}
}

// TestPush_LayersViaRegistry pushes the layers to a registry, and only their list to git. A pull verifies that the
// layers are those of the proposal, or fails.
func TestPush_LayersViaRegistry(t *testing.T) {
	t.Parallel()
	host, data := registrytest.Start(t, registrytest.Basic)
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	where := host + "/team/layers"
	push := []string{"git", "push", "fix-auth", "--trust-all", "--with-layers", "--registry", where}
	w.alice.refused("no credentials", push...)
	if out, _, err := w.alice.in(w.bare, "git", "rev-parse", "--verify", "-q", branchRef); err == nil {
		t.Errorf("references were pushed before the layers: %s", out)
	}
	login := `{"auths": {"` + host + `": {"auth": "` +
		base64.StdEncoding.EncodeToString([]byte(registrytest.User+":"+registrytest.Password)) + `"}}}`
	for _, p := range []*traveller{w.alice, w.bob} {
		if err := os.MkdirAll(filepath.Join(p.home, "me/.docker"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.home, "me/.docker/config.json"), []byte(login), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.alice.refused("packed layers exceed the limit of the registry", append(push, "--max-layers", "10")...)
	w.alice.refused("--registry requires --with-layers", "git", "push", "fix-auth", "--registry", where)
	w.alice.run(push...)
	uploaded := blobs(t, data)
	w.alice.run("exec", "fix-auth", "--", "sh", "-ec", "cd "+w.alice.top+"; rm src/b.txt; echo late >late.txt")
	w.alice.run(push...)
	for name, since := range blobs(t, data) {
		if was, ok := uploaded[name]; ok && !was.Equal(since) {
			t.Errorf("%s was uploaded again", name)
		}
	}
	const layersRef = "refs/coppice/layers/fix-auth"
	files := w.tree(layersRef)
	if len(files) != 1 {
		t.Fatalf("git has %d files of layers", len(files))
	}
	list, err := proposal.DecodeLayers([]byte(files[proposal.FileLayers]))
	if err != nil || list.Artifact == nil || list.Artifact.Repository != where {
		t.Fatalf("%+v, %v", list, err)
	}

	pull := []string{"git", "pull", "fix-auth", "--with-layers", "--as", "fixed"}
	refused := func(why string, args ...string) {
		t.Helper()
		if out, said, err := w.bob.try(args...); err == nil || !strings.Contains(said, why) ||
			strings.ContainsAny(said, "\x1b\x07") {
			t.Errorf("coppice %q: %v, want an error with %q:\n%s%s", args, err, why, out, said)
		}
	}
	refused("a registry on the author's machine", pull...)
	mine := append(pull, "--registry", where)
	// The registry sends other content: the proposed content is identified by its digest.
	last := list.Artifact.Blobs[len(list.Artifact.Blobs)-1]
	stored := filepath.Join(data, "docker/registry/v2/blobs/sha256", last.Digest[7:9], last.Digest[7:], "data")
	good, err := os.ReadFile(stored)
	if err != nil {
		t.Fatal(err)
	}
	for why, bad := range map[string][]byte{"sent wrong content for blob": []byte(flipped(string(good))),
		"blob": good[:len(good)/2]} {
		if err := os.WriteFile(stored, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(why, mine...)
	}
	if err := os.WriteFile(stored, good, 0o600); err != nil {
		t.Fatal(err)
	}
	// The list differs from the registry's content: each layer must have the digest in the list, even if the registry
	// has what a wrong list describes.
	forge := func(change func(l *proposal.Layers)) {
		l, err := proposal.DecodeLayers([]byte(files[proposal.FileLayers]))
		if err != nil {
			t.Fatal(err)
		}
		change(l)
		said, err := proposal.EncodeLayers(l)
		if err != nil {
			t.Fatal(err)
		}
		w.bob.git(w.bare, "update-ref", layersRef,
			w.bob.git(w.bare, "commit-tree", "-m", "forged", w.write(map[string]string{proposal.FileLayers: string(said)}, nil)))
	}
	forge(func(l *proposal.Layers) {
		b := l.Artifact.Blobs
		b[0].Digest, b[0].Size, b[1].Digest, b[1].Size = b[1].Digest, b[1].Size, b[0].Digest, b[0].Size
	})
	refused("digest", mine...)
	forge(func(l *proposal.Layers) { l.Artifact.Blobs[0].Size++ })
	refused("blob", mine...)
	forge(func(l *proposal.Layers) { l.Artifact.Repository = "ghcr.invalid/team/layers" })
	refused("ghcr.invalid", pull...)
	w.bob.run(mine...) // from the registry that bob names
	inside := func(script string) string {
		return w.bob.run("exec", "fixed", "--", "sh", "-c", "cd "+w.bob.top+" && "+script)
	}
	if out := inside("cat a.txt late.txt; ls src"); out != "one\ntwo\nlate\nnew.txt\n" {
		t.Errorf("the sandbox has %q", out)
	}
	w.bob.run("rewind", "fixed", "HEAD~1")
	if out := inside("ls src; cat late.txt 2>/dev/null; true"); out != "b.txt\nnew.txt\n" {
		t.Errorf("the previous snapshot has %q", out)
	}
	refused("sandbox fixed already exists", mine...)
}

// TestPush_KilledPushesNoReference kills a push before its artifact is complete. No reference may have been pushed,
// and the next push must upload only what the registry lacks.
func TestPush_KilledPushesNoReference(t *testing.T) {
	t.Parallel()
	host, data := registrytest.Start(t, registrytest.Nobody)
	var (
		waits  atomic.Bool
		nearly = make(chan struct{}, 1)
	)
	waits.Store(true)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: host})
		r.Out.Host = r.In.Host
	}, ErrorLog: log.New(io.Discard, "", 0)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && waits.Load() {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the end of the connection
			nearly <- struct{}{}
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	w := newTravellers(t, func(bare string) string { return bare })
	w.work()
	push := []string{"git", "push", "fix-auth", "--trust-all", "--with-layers", "--registry",
		strings.TrimPrefix(srv.URL, "http://") + "/team/layers"}
	cmd := exec.Command("coppice", push...)
	cmd.Dir, cmd.Env = w.alice.top, w.alice.env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-nearly
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the killed push exited with code 0")
	}
	if out := w.alice.git(w.bare, "for-each-ref", "--format=%(refname)"); out != "refs/heads/main" {
		t.Errorf("the remote has %s", out)
	}
	waits.Store(false)
	before := blobs(t, data)
	w.alice.run(push...)
	for name, since := range blobs(t, data) {
		if was, ok := before[name]; ok && !was.Equal(since) {
			t.Errorf("%s was uploaded again", name)
		}
	}
	w.bob.run("git", "pull", "fix-auth", "--with-layers", "--as", "fixed", "--registry",
		strings.TrimPrefix(srv.URL, "http://")+"/team/layers")
}

// blobs lists the blobs of a registry, with their modification times.
func blobs(t *testing.T, data string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	err := filepath.WalkDir(filepath.Join(data, "docker/registry/v2/blobs"),
		func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "data" {
				info, ierr := d.Info()
				if err = ierr; err == nil {
					all[name] = info.ModTime()
				}
			}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
