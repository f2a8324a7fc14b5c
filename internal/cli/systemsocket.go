package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) systemSocket() *cobra.Command {
	var closeIt bool
	cmd := &cobra.Command{
		Use: "socket NAME [flags]", Short: "Print the path of a socket for a sandbox's API",
		Long: `Print the path of a unix socket that serves only this sandbox, for harnesses in
any language. A request is a line of JSON, such as {"op":"exec","cmd":"make"};
responses are lines of JSON, the last of which has "ok":true or "error".
Operations: exec, spawn, ps, kill, head, log, branches, show, diff, checkout,
commit, delete, tag, mark, tournament, gc, retain.

The socket exists until it is closed with --close or the sandbox is removed. The
daemon does not exit while a socket exists. If it is stopped anyway, connections
are refused until the next command starts another daemon, which listens on the
same path.`,
		Example: `  coppice system socket box
  echo '{"op":"log"}' | nc -NU "$(coppice system socket box)"
  coppice system socket --close box`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if closeIt {
				return c.CloseSocket(cmd.Context(), args[0])
			}
			res, err := c.Socket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.getenv("COPPICE_SOCKET") == "" { // with COPPICE_SOCKET, it may be on another machine
				if res.Path, err = a.shortened(res.Path); err != nil {
					return err
				}
			}
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Path))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&closeIt, "close", false, "close the socket")
	return cmd
}

// maxSocketPath is the maximum length of a socket's path, in bytes (unix(7): sun_path, with its NUL).
const maxSocketPath = 107

// shortened returns a path that programs can connect to. If the path in the home is too long, it is that of a
// symbolic link in XDG_RUNTIME_DIR.
func (a *app) shortened(path string) (string, error) {
	if len(path) <= maxSocketPath {
		return path, nil
	}
	dir := a.getenv("XDG_RUNTIME_DIR")
	link := filepath.Join(dir, "coppice-"+filepath.Base(filepath.Dir(path))+".sock")
	if !filepath.IsAbs(dir) || len(link) > maxSocketPath {
		return "", fault.New(fault.Unsupported, "the path of the socket is too long: %d bytes, at most %d: %s",
			len(path), maxSocketPath, path).
			WithHint("set XDG_RUNTIME_DIR to a directory that you own with a short path, as in: mkdir -m 700 /tmp/me; " +
				"XDG_RUNTIME_DIR=/tmp/me coppice system socket NAME")
	}
	if to, err := os.Readlink(link); err == nil && to == path {
		return link, nil
	}
	next := link + ".new"
	err := os.Remove(next)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = os.Symlink(path, next)
	}
	if err == nil {
		err = os.Rename(next, link)
	}
	return link, fault.Wrap(err, "create a short path to the socket")
}
