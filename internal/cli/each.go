package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/tty"
)

// printEach calls fn for every name, and prints the names for which it succeeded, or with --json the results by name.
func printEach[T any](
	ctx context.Context, a *app, names []string, fn func(*client.Client, context.Context, string) (T, error),
) error {
	res := map[string]T{}
	err := a.each(ctx, names, func(ctx context.Context, c *client.Client, name string) error {
		r, err := fn(c, ctx, name)
		if err == nil {
			res[name] = r
		}
		return err
	})
	perr := a.print(res, func(w io.Writer) error {
		for _, n := range names {
			if _, ok := res[n]; ok {
				if _, err := fmt.Fprintln(w, tty.Clean(n)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(err, perr)
}

// each calls fn for every name. An error does not stop the other calls: each prints all errors but the last, and
// returns the last.
func (a *app) each(ctx context.Context, names []string, fn func(context.Context, *client.Client, string) error) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	var last error
	for _, n := range names {
		if err := fn(ctx, c, n); err != nil {
			if last != nil {
				a.finish(nil, last)
			}
			last = err
		}
	}
	return last
}
