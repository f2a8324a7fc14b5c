package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/fault"
)

// secretsDir is the directory of the stored secrets in a home. A home without it needs no broker.
const secretsDir = "secrets"

// storedSecret describes a secret: it is a client.Secret of package secret/client, which exists on Linux only.
type storedSecret struct {
	Name        string    `json:"name"`
	Kind        string    `json:"kind,omitempty"`
	From        string    `json:"from"`
	Length      int       `json:"length,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	Rotated     time.Time `json:"rotated,omitzero"`
	Grants      int       `json:"grants"`
	Problem     string    `json:"problem,omitempty"`
	Hint        string    `json:"hint,omitempty"`
}

// secretStore is the broker of a home: see package secret/client for the contract of the methods.
type secretStore interface {
	Set(ctx context.Context, name, from, kind string, value []byte) (storedSecret, error)
	List(ctx context.Context) ([]storedSecret, error)
	Remove(ctx context.Context, name string, force bool) error
	Test(ctx context.Context, name string) (storedSecret, error)
}

// secrets returns the broker of the home, which it starts if none runs.
func (a *app) secrets(ctx context.Context) (secretStore, error) {
	if a.getenv("COPPICE_HOST") != "" {
		return nil, fault.New(fault.Unsupported, "secrets are stored on the machine of the daemon, and COPPICE_HOST is set").
			WithHint("run the command there: coppice secret")
	}
	home, err := a.home()
	if err != nil {
		return nil, err
	}
	if err := a.startBroker(ctx, home); err != nil {
		return nil, err
	}
	return brokerOf(home), nil
}

// withBroker returns a function that starts the broker of a home with stored secrets, once. The daemon, which may live
// in a user namespace, cannot start it: programs that keep secrets must run in the session of the owner. An error is a
// warning, since only grants need the broker.
func (a *app) withBroker(home string) func(context.Context) {
	var once sync.Once
	return func(ctx context.Context) {
		if _, err := os.Stat(filepath.Join(home, secretsDir)); err != nil {
			return
		}
		once.Do(func() {
			if err := a.startBroker(ctx, home); err != nil {
				a.warn([]string{fmt.Sprintf("the broker of secrets did not start: %v", err)})
			}
		})
	}
}

// secretNames completes the names of secrets; it does not start the broker.
func (a *app) secretNames(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		home, err := a.home()
		if err != nil || a.getenv("COPPICE_HOST") != "" || most > 0 && len(args) >= most {
			return nil, none
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		list, err := brokerOf(home).List(ctx)
		if err != nil {
			return nil, none
		}
		var names []string
		for _, s := range list {
			names = append(names, s.Name)
		}
		return names, none
	}
}
