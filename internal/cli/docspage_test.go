//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/npmtest"
)

// TestDocumentationPage uses the documentation page in a real browser: with the keyboard alone, light and dark, and
// without network access except to the daemon. SHOT=PREFIX saves screenshots.
func TestDocumentationPage(t *testing.T) {
	t.Parallel()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skipf("needs chromium: %v", err)
	}
	const dir = "testdata/docs-page"
	modules := npmtest.Install(t, dir, "playwright-core")
	d := newDesk(t)
	url := d.listen()
	token := strings.TrimSpace(d.run("token", "create", "page", "--scope", "operate"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience) // 750 keys, each of which waits for a frame
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", dir+"/page.mjs")
	cmd.Env = append(d.env, "CHROMIUM="+chromium, "MODULES="+modules, "SANDBOX="+sandbox, "TOKEN="+token, "URL="+url)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// listen restarts the daemon, which also listens on TCP, and returns its URL.
func (d *desk) listen() string {
	d.t.Helper()
	d.run("serve", "--stop")
	cmd := exec.Command("coppice", "serve", "--http", "127.0.0.1:0")
	cmd.Env = d.env
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var rest sync.WaitGroup
	d.t.Cleanup(func() {
		d.try("serve", "--stop")
		rest.Wait()
		_ = cmd.Wait() // with any exit code
	})
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			rest.Go(func() {
				for lines.Scan() { // the daemon must not block on stderr
				}
			})
			return url
		}
	}
	d.t.Fatal("the daemon does not print its address")
	return ""
}
