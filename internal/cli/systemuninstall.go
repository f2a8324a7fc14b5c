package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) systemUninstall() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "uninstall [flags]", Short: "Remove all sandboxes and the data directory",
		Long: `Stop and remove all sandboxes, stop the daemon, remove the data directory with
all snapshots and records, and print its path. The programs remain, and so does
the directory, empty, if it is a mount point. On a terminal you are asked first;
otherwise --force is required. A directory that is not a data directory of
Coppice is refused, and links in it are not followed.`,
		Example: "  coppice system uninstall\n  coppice --home /srv/coppice system uninstall --force",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.getenv("COPPICE_HOST") != "" {
				return usagef("cannot remove the home of another machine: COPPICE_HOST is set")
			}
			home, err := a.home()
			if err != nil {
				return err
			}
			if home, err = homeDir(home); err != nil {
				return err
			}
			if !force {
				if err := a.confirmRemoval(home); err != nil {
					return err
				}
			}
			mounted, err := a.removeHome(cmd.Context(), home)
			if err != nil {
				return err
			}
			res := map[string]any{"removed": home}
			if mounted {
				res["mount_point"] = true
			}
			return a.print(res, func(w io.Writer) error {
				if mounted {
					a.note("the mount point remains; remove it: umount %[1]s && rmdir %[1]s", tty.Word(home))
				}
				_, err := fmt.Fprintln(w, tty.Clean(home))
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

// formatName is the file that identifies a directory as a home.
const formatName = "format"

// homeDir resolves the links in the path of a home, and fails if the directory is not a home.
func homeDir(home string) (string, error) {
	dir, err := filepath.EvalSymlinks(home)
	if err != nil {
		return "", fault.Wrap(err, "find the home %s", home)
	}
	name := filepath.Join(dir, formatName)
	st, err := os.Lstat(name)
	if err == nil && st.Mode().IsRegular() {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", fault.Wrap(err, "read %s", name)
		}
		if strings.HasPrefix(string(text), "coppice home ") {
			return dir, nil
		}
	}
	return "", fault.New(fault.Invalid, "cannot remove %s: not a home of Coppice", home).
		WithHint("name the home with --home or COPPICE_HOME")
}

// confirmRemoval asks at a terminal whether to remove the home, and fails unless the answer is yes.
func (a *app) confirmRemoval(home string) error {
	if !tty.IsTerminal(a.stdin) || !tty.IsTerminal(a.stderr) {
		return &usageError{msg: "cannot ask: stdin is not a terminal", hint: "add --force"}
	}
	fmt.Fprintf(a.stderr, "Remove %s with all sandboxes, snapshots and records? [y/N] ", tty.Quote(home))
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil || strings.ToLower(strings.TrimSpace(answer)) != "y" {
		return fault.New(fault.Cancelled, "nothing was removed")
	}
	return nil
}

// removeHome removes the sandboxes of a home and their remains through the daemon, which may remove files of
// subordinate IDs; then it stops the daemon and removes the directory. mounted reports that the directory is a mount
// point and was kept.
func (a *app) removeHome(ctx context.Context, home string) (mounted bool, err error) {
	c, err := a.client()
	if err != nil {
		return false, err
	}
	if err := servesHome(ctx, c, home); err != nil {
		return false, err
	}
	list, err := c.List(ctx)
	if err != nil {
		return false, err
	}
	for _, sb := range list {
		if err := c.Remove(ctx, sb.ID, true); err != nil {
			return false, fault.Wrap(err, "remove sandbox %s", sb.Name)
		}
	}
	show, done := a.progress()
	_, err = c.GC(ctx, wire.GCRequest{}, show)
	done()
	if err != nil {
		return false, err
	}
	s, err := a.starter()
	if err != nil {
		return false, err
	}
	if _, err := endDaemon(ctx, s); err != nil {
		return false, err
	}
	if err := stopBroker(ctx, home); err != nil {
		return false, err
	}
	release, err := lockHome(home)
	if err != nil {
		return false, err
	}
	defer release()
	return removeTrees(ctx, home)
}

// servesHome fails unless the daemon that c reaches serves home. With COPPICE_SOCKET it may serve another.
func servesHome(ctx context.Context, c *client.Client, home string) error {
	st, err := c.Daemon(ctx)
	if err != nil {
		return err
	}
	want, err := os.Stat(home)
	if err != nil {
		return fault.Wrap(err, "find the home %s", home)
	}
	if got, err := os.Stat(st.Home); err != nil || !os.SameFile(got, want) {
		return fault.New(fault.Conflict, "cannot remove %s: the daemon serves %s", home, st.Home).
			WithHint("unset COPPICE_SOCKET, or name the home with --home")
	}
	return nil
}

// lostFound is in the root of every ext4 file system, and belongs to root.
const lostFound = "lost+found"

// removeTrees removes the content of a home, and then the home unless it is a mount point. The file that identifies a
// home is removed last, so that an interrupted removal can be repeated.
func removeTrees(ctx context.Context, home string) (mounted bool, err error) {
	if mounted, err = isMountPoint(home); err != nil {
		return false, fault.Wrap(err, "remove %s", home)
	}
	list, err := os.ReadDir(home)
	if err != nil {
		return false, fault.Wrap(err, "remove %s", home)
	}
	for _, entry := range list {
		name := filepath.Join(home, entry.Name())
		switch {
		case entry.Name() == formatName, entry.Name() == lostFound && mounted:
		case entry.IsDir():
			err = removeTree(ctx, name)
		default:
			err = os.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fault.Wrap(err, "remove %s", home)
		}
	}
	if mounted {
		return true, fault.Wrap(os.Remove(filepath.Join(home, formatName)), "remove %s", home)
	}
	return false, removeTree(ctx, home)
}
