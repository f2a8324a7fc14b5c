package cli

import (
	"context"
	"os"
	"path/filepath"

	secret "github.com/coppice-dev/coppice/internal/secret/client"

	"github.com/coppice-dev/coppice/internal/program"
)

// startBroker starts the broker of a home unless one runs.
func (a *app) startBroker(ctx context.Context, home string) error {
	programs := program.New(filepath.Join(home, "programs"), a.getenv("COPPICE_EXEC_PATH"))
	defer programs.Close()
	return secret.Start(ctx, secret.Options{Home: home, Programs: programs, Env: os.Environ()})
}

// broker is a secretStore.
type broker struct{ c *secret.Client }

func brokerOf(home string) secretStore { return broker{secret.Dial(home)} }

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

func (b broker) Remove(ctx context.Context, name string, force bool) error { return b.c.Remove(ctx, name, force) }

func (b broker) Test(ctx context.Context, name string) (storedSecret, error) {
	s, err := b.c.Test(ctx, name)
	return storedSecret(s), err
}
