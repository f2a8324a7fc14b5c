// Command claude-code runs Claude Code in a sandbox with a scripted model. The agent deletes itself and rewinds its own
// sandbox: see README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/examples/claude-code/model"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: claude-code INSTALLATION SANDBOX")
		os.Exit(2)
	}
	if err := play(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "claude-code:", err)
		os.Exit(1)
	}
}

// play runs the agent that is installed in the directory install.
func play(ctx context.Context, install, sandbox string) error {
	claude := filepath.Join(install, "node_modules/.bin/claude")
	srv := model.New(model.SelfStory(model.Stage{Claude: claude, Doomed: []string{install}}))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go http.Serve(l, srv) //nolint:errcheck,gosec // until we end

	// The model listens on the host's 127.0.0.1.
	if _, err := coppice(ctx, "create", sandbox, "--net", "host", "--self", "rewind"); err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	work := filepath.Join(home, "coppice-example")
	if _, err := coppice(ctx, "exec", sandbox, "--", "mkdir", "-p", work); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "coppice", "run", "--in", sandbox, "--workdir", work,
		"-e", "CLAUDE_CONFIG_DIR="+filepath.Join(work, ".claude"),
		"-e", "ANTHROPIC_BASE_URL=http://"+l.Addr().String(), "-e", "ANTHROPIC_AUTH_TOKEN=none",
		"-e", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "-e", "DISABLE_AUTOUPDATER=1",
		"--", claude, "--mcp-config", `{"mcpServers":{"coppice":{"command":"/run/coppice-bin/coppice","args":["mcp"]}}}`,
		"--allowedTools", "Bash,Write,mcp__coppice", "--print", "Count to one thousand.")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return errors.Join(cmd.Run(), srv.Err())
}

// coppice runs coppice, and prints the command.
func coppice(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintln(os.Stderr, "$ coppice", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, "coppice", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return string(out), err
}
