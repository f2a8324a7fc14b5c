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

// The page of documentation works in a real browser: with the keyboard alone, light
// and dark, and without any network but the daemon's. SHOT=PREFIX keeps pictures.
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience) // 750 keys, of which each waits for a frame
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", dir+"/page.mjs")
	cmd.Env = append(d.env, "CHROMIUM="+chromium, "MODULES="+modules, "SANDBOX="+sandbox, "TOKEN="+token, "URL="+url)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// listen starts the daemon anew, on TCP as well, and gives its address.
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
		_ = cmd.Wait() // however it ended
	})
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			rest.Go(func() {
				for lines.Scan() { // it must not wait for a reader
				}
			})
			return url
		}
	}
	d.t.Fatal("the daemon does not say where it listens")
	return ""
}
