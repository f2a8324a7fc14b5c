package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) create() *cobra.Command {
	var (
		req    wire.CreateRequest
		from   string
		limits []string
	)
	cmd := &cobra.Command{
		Use: "create [NAME] [flags]", Short: "Make a sandbox", GroupID: groupBox,
		Long: `Make a sandbox, and print its name.

--from says what its root file system begins as:

  host           this machine's own root, as you see it: nothing is copied, and
                 nothing of it is changed (default)
  host-copy      the system directories of this machine, imported once; when
                 packages were installed, changed or removed since, what
                 differs is imported too
  DIR            a directory: a path that holds a "/"
  TARBALL        tar, or tar compressed by gzip, zstd or xz: a path, an http(s)
                 address, or "-" for stdin
  SANDBOX[@REF]  a snapshot of another sandbox; without REF its present state

/proc, /dev, /sys, /run and /tmp are mounts of the sandbox's own and have no
history.`,
		Example: `  coppice create box
  coppice create web --from ./rootfs.tar.zst --user root --limit memory=4GiB,pids=512
  coppice create again --from box@HEAD~3`,
		Args: between(0, 1, "one name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				req.Name = args[0]
			}
			req.Limits = strings.Join(limits, ",")
			var err error
			if req.Env, err = a.env(req.Env); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			body, err := a.source(ctx, from, &req)
			if err != nil {
				return err
			}
			if body != nil {
				defer body.Close()
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			show, done := a.progress()
			sb, err := c.Create(ctx, req, show)
			done()
			if err != nil {
				return err
			}
			a.warn(sb.Warnings)
			for _, n := range sb.Notes {
				a.note("%s", tty.Clean(n))
			}
			return a.print(sb, func(w io.Writer) error {
				a.note("made %s from %s: driver %s, tier %s, net %s, as %s", tty.Clean(sb.Name), tty.Clean(sb.From),
					tty.Clean(sb.Driver), tty.Clean(sb.Tier), tty.Clean(sb.Net), tty.Clean(sb.User))
				_, err := fmt.Fprintln(w, tty.Clean(sb.Name))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "host", "`SOURCE`: host, host-copy, DIR, TARBALL or SANDBOX[@REF]")
	f.StringVar(&req.User, "user", "", "`USER` of its commands: root, me (who you are here) or a name it knows (default: me from host, else root)")
	f.StringVar(&req.Driver, "driver", "", "how its files are versioned: auto (default), overlay, copy, btrfs")
	f.StringVar(&req.Tier, "tier", "", "how its processes are confined: auto (default), workspace, process")
	f.StringVar(&req.Net, "net", "", "its network: off (default), host")
	f.StringArrayVarP(&req.Env, "env", "e", nil, "set a variable for every command: `K=V`, or K to take it from here")
	f.StringArrayVar(&limits, "limit", nil, "`LIMITS`: memory=4GiB,pids=512; disk=10GiB is refused, as no driver can enforce it yet")
	must(cmd.RegisterFlagCompletionFunc("driver", cobra.FixedCompletions([]string{"auto", "overlay", "copy", "btrfs"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("tier", cobra.FixedCompletions([]string{"auto", "workspace", "process"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("net", cobra.FixedCompletions([]string{"off", "host"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("user", cobra.FixedCompletions([]string{"me", "root"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// must is for what only a wrong program can make fail: a flag's name that its
// command does not have.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// env resolves "K" to "K=V" from our own environment; one that is not set is
// left out, as docker does.
func (a *app) env(list []string) ([]string, error) {
	var out []string
	for _, kv := range list {
		k, _, set := strings.Cut(kv, "=")
		if k == "" {
			return nil, usagef("%q is no variable: K=V is wanted", kv)
		}
		if !set {
			v := a.getenv(k)
			if v == "" {
				continue
			}
			kv = k + "=" + v
		}
		out = append(out, kv)
	}
	return out, nil
}

// source fills in req.From, and gives what must be closed afterwards.
func (a *app) source(ctx context.Context, from string, req *wire.CreateRequest) (io.Closer, error) {
	switch {
	case from == "host" || from == "host-copy":
		req.From = wire.Source{Kind: from}
		return nil, nil
	case from == "":
		return nil, &usageError{msg: "--from is empty", hint: "give host, host-copy, a path, an address or a sandbox"}
	case from == "-":
		if tty.IsTerminal(a.stdin) {
			return nil, &usageError{msg: "an archive is wanted on stdin, and that is a terminal", hint: "pipe one in: tar -c . | coppice create --from -"}
		}
		req.From = wire.Source{Kind: wire.SourceTar, Path: "stdin"}
		req.Tar = a.stdin
		return nil, nil
	case strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://"):
		body, err := download(ctx, from)
		if err != nil {
			return nil, err
		}
		req.From = wire.Source{Kind: wire.SourceTar, Path: from}
		req.Tar = body
		return body, nil
	case strings.Contains(from, "/") || from == "." || from == ".." || archiveName(from):
		return a.path(from, req)
	}
	name, ref, _ := strings.Cut(from, "@")
	if strings.HasPrefix(ref, "{") {
		ref = "@" + ref // SANDBOX@{5m}
	}
	req.From = wire.Source{Kind: wire.SourceSandbox, Sandbox: name, Ref: ref}
	return nil, nil
}

// archiveName tells a bare file name from a sandbox's name.
func archiveName(s string) bool {
	for _, end := range []string{".tar", ".tgz", ".txz", ".tzst", ".tar.gz", ".tar.xz", ".tar.zst"} {
		if strings.HasSuffix(s, end) {
			return true
		}
	}
	return false
}

func (a *app) path(from string, req *wire.CreateRequest) (io.Closer, error) {
	abs, err := filepath.Abs(from)
	if err != nil {
		return nil, fault.Wrap(err, "find %s", from)
	}
	st, err := os.Stat(abs)
	if err != nil {
		return nil, fault.New(fault.KindOf(err), "use %s as a source", from).Because(err)
	}
	if st.IsDir() {
		req.From = wire.Source{Kind: wire.SourceDir, Path: abs}
		return nil, nil
	}
	f, err := os.Open(abs)
	if err != nil {
		return nil, fault.New(fault.KindOf(err), "use %s as a source", from).Because(err)
	}
	req.From = wire.Source{Kind: wire.SourceTar, Path: abs}
	req.Tar = f
	return f, nil
}

// download opens an archive on the web. It is fetched here and not by the
// daemon: with this user's network, proxies and rights.
func download(ctx context.Context, url string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, usagef("%q is no address", url)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "fetch the archive").Because(err)
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, fault.New(fault.Unavailable, "fetch %s: the server answered %s", url, res.Status)
	}
	return res.Body, nil
}
