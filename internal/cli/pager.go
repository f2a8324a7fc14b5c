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

// paged has write show something long: through a pager where stdout is a terminal, as git
// does. shown says that people look at it, so that it has to be clean and may have
// colours. A reader who goes away is no error.
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
	_ = cmd.Wait() // how a pager ends says nothing about what it showed
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// pager is what long texts are shown with; "" is nothing.
func (a *app) pager() string {
	for _, k := range []string{"GIT_PAGER", "PAGER"} {
		if p := a.getenv(k); p != "" {
			return p
		}
	}
	return "less"
}

// pagerEnv has less show colours, and end at once where all fits, as git has it.
func (a *app) pagerEnv(env []string) []string {
	for k, v := range map[string]string{"LESS": "FRX", "LV": "-c"} {
		if a.getenv(k) == "" {
			env = append(env, k+"="+v)
		}
	}
	return env
}
