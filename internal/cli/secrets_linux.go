package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
	secret "github.com/coppice-dev/coppice/internal/secret/client"
)

// startBroker starts the broker of a home unless one runs.
func (a *app) startBroker(ctx context.Context, home string) error {
	programs := program.New(filepath.Join(home, "programs"), a.getenv("COPPICE_EXEC_PATH"))
	defer func() { _ = programs.Close() }()
	return secret.Start(ctx, secret.Options{Home: home, Programs: programs, Env: os.Environ()})
}

// stopBroker stops the broker of a home, if one runs, and waits until it has exited.
func stopBroker(ctx context.Context, home string) error {
	c := secret.Dial(home)
	st, err := c.Status(ctx)
	if fault.KindOf(err) == fault.Unavailable {
		return nil
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(st.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fault.Wrap(err, "stop the broker (pid %d)", st.PID)
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		now, err := c.Status(ctx)
		if fault.Is(err, fault.Unavailable) || err == nil && now.Boot != st.Boot {
			return nil
		}
	}
	return fault.New(fault.Timeout, "the broker (pid %d) did not stop", st.PID)
}

// broker is a secretStore.
type broker struct{ c *secret.Client }

// brokerOf returns the broker of a home. It reads variables, and runs programs that hold secrets, as in the environment
// of this process.
func brokerOf(home string) secretStore { return broker{secret.Dial(home).With(os.Environ())} }

func (b broker) Set(ctx context.Context, name, from, kind string, value []byte) (storedSecret, error) {
	s, err := b.c.Set(ctx, name, from, kind, value)
	return storedSecret(s), err
}

func (b broker) List(ctx context.Context) ([]storedSecret, error) {
	all, err := b.c.List(ctx)
	list := make([]storedSecret, len(all))
	for i, s := range all {
		list[i] = storedSecret(s)
	}
	return list, err
}

func (b broker) Remove(ctx context.Context, name string, force bool) error {
	return b.c.Remove(ctx, name, force)
}

func (b broker) Test(ctx context.Context, name string) (storedSecret, error) {
	s, err := b.c.Test(ctx, name)
	return storedSecret(s), err
}
