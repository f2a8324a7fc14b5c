package cli

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"syscall"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// paged calls write to show long output: through a pager if stdout is a terminal, as git does. shown means that the
// output is for people: it must be sanitized, and may have colours. A pager that exits early is not an error.
func (a *app) paged(ctx context.Context, form gitForm, write func(w io.Writer, p tty.Palette, shown bool) error) error {
	p, terminal := a.palette(), tty.IsTerminal(a.stdout)
	switch form.color {
	case "", "auto":
	case "always", "never":
		p.On = form.color == "always"
	default:
		return usagef("invalid --color=%s: must be always, never or auto", form.color)
	}
	shown := terminal || p.On
	program := a.pager()
	if !terminal || form.noPager || program == "" || program == "cat" {
		return write(a.out, p, shown)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", program)
	cmd.Stdout, cmd.Stderr = a.stdout, a.stderr
	cmd.Env = a.pagerEnv(cmd.Environ())
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fault.Wrap(err, "start the pager %s", program)
	}
	err = write(in, p, shown)
	in.Close()
	_ = cmd.Wait() // the exit code of a pager does not matter
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// pager returns the pager command; "" if there is none.
func (a *app) pager() string {
	for _, k := range []string{"GIT_PAGER", "PAGER"} {
		if p := a.getenv(k); p != "" {
			return p
		}
	}
	return "less"
}

// pagerEnv makes less show colours, and exit if everything fits on the screen, as git does.
func (a *app) pagerEnv(env []string) []string {
	for k, v := range map[string]string{"LESS": "FRX", "LV": "-c"} {
		if a.getenv(k) == "" {
			env = append(env, k+"="+v)
		}
	}
	return env
}
