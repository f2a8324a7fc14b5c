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
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) create() *cobra.Command {
	var mk making
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

Automatic snapshots thin out by themselves: the newest --keep-recent snapshots and
those younger than --keep-for all stay; of older ones there stays one a minute for
a day, one an hour for a week, one a day for 90 days and one a week. Other
snapshots never go unasked, nor does one that is tagged, that HEAD or redo is at,
or that a fork began at.

--limit disk=SIZE needs a daemon of real root, and COPPICE_HOME on ext4 or xfs
with project quotas or on btrfs with quotas ("coppice system probe" says what is
missing). It limits what the live root holds beyond its base, and with driver
overlay the sandbox's own snapshots and the number of files too (one for each
4 KiB). No snapshot is refused for it. A fork has the same limit for itself.
--limit cpus=N needs a daemon of real root, and the kernel's cpu controller. A command
that takes longer than --limit time=TIME, or prints more than --limit output=SIZE, is
ended, with exit code 124 or 153.

In a git repository, a sandbox from host works on it: it sees it at the same path, as it
was at a commit, on a new branch coppice/NAME, and nothing of your own work tree. The
commit is HEAD, or the one that --at names; with --dirty it is HEAD and what is not
committed. Git works inside as always, on a repository of the sandbox's own that
borrows your objects; commands begin in the directory where you are. --repo names
another repository, --no-repo does without.

What it may reach and use is its policy: what is built in, then your own file
(~/.config/coppice/coppice.yaml), then ./coppice.yaml, then the flags --policy,
--preset, --allow, --ask, --net, --tier, --limit and --env. The two files are taken where
they are there, unless --no-policy-files is given, and never with --from SANDBOX, which
begins with the policy of that sandbox. With --allow, --preset or --ask the network is
what rules allow and nothing else, in tier supervised, or gvisor where that is asked
for; with --ask what no rule names waits for you ("coppice net log NAME --asking", "coppice
net approve"), for 55 seconds. "coppice policy show" shows what it came to.

--user root makes commands root inside. Where the daemon is not root, that root has the
ids of the subordinate ranges (package uidmap). Without them it is emulated: it owns what
you own, and cannot change other files of the host. To change system files then, use a
copy: --from host-copy --user root.

--tier auto is process; supervised where there are rules; and gvisor, where this host can
give it, when the policy says "strong: true". Where the host can give none of them,
or that cannot be found out, create fails: workspace, which confines nothing, is chosen
by name alone.

/proc, /dev, /sys, /run and /tmp are mounts of the sandbox's own and have no
history.`,
		Example: `  coppice create box
  coppice create fix-auth --at v1.2
  coppice create py --preset pypi --allow api.example.com
  coppice create web --preset npm --ask
  coppice create made --from ./rootfs.tar.zst --user root --limit memory=4GiB,pids=512
  coppice create again --from box@HEAD~3`,
		Args: between(0, 1, "one name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				mk.req.Name = args[0]
			}
			sb, err := a.make(cmd, &mk)
			if err != nil {
				return err
			}
			return a.print(sb, func(w io.Writer) error {
				a.note("made %s from %s: driver %s, tier %s, net %s, as %s", tty.Clean(sb.Name), tty.Clean(sb.From),
					tty.Clean(sb.Driver), tty.Clean(sb.Tier), tty.Clean(sb.Net), tty.Clean(sb.User))
				_, err := fmt.Fprintln(w, tty.Clean(sb.Name))
				return err
			})
		},
	}
	mk.flags(cmd)
	return cmd
}

// making is what the flags say about a sandbox to be made.
type making struct {
	req    wire.CreateRequest
	from   string
	limits []string
	keep   keeping
	live   living
	policy wanting
	repo   repository
}

// flags are those of every command that makes a sandbox.
func (mk *making) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&mk.from, "from", "host", "`SOURCE`: host, host-copy, DIR, TARBALL or SANDBOX[@REF]")
	f.StringVar(&mk.req.User, "user", "",
		"`USER` of its commands: root, me (who you are here) or a name it knows (default: me from host, else root)")
	f.StringVar(&mk.req.Driver, "driver", "", "how its files are versioned: auto (default), overlay, copy, btrfs")
	f.StringVar(&mk.req.Tier, "tier", "",
		"how its processes are confined: auto (default), workspace, process, supervised, gvisor")
	f.StringVar(&mk.req.Net, "net", "", "its network: off (default), rules (what the policy allows), host")
	f.StringArrayVarP(&mk.req.Env, "env", "e", nil, "set a variable for every command: `K=V`, or K to take it from here")
	f.StringVar(&mk.req.Self, "self", "",
		"what may be done from inside, at "+wire.SelfSocket+
			": off, read (default: log, show, diff, mark), rewind (also commit, tag, go back in place)")
	mk.repo.flags(cmd)
	mk.policy.flags(cmd)
	mk.policy.automatic(cmd)
	mk.keep.flags(cmd)
	mk.live.flags(cmd)
	f.StringArrayVar(&mk.limits, "limit", nil,
		"`LIMITS`: memory=4GiB,cpus=1.5,pids=512,disk=10GiB; time=30m,output=100MiB of one command, files=1024 of one "+
			"process; see above for what cpus and disk need")
	must(cmd.RegisterFlagCompletionFunc("self",
		cobra.FixedCompletions([]string{wire.SelfOff, wire.SelfRead, wire.SelfRewind}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("driver",
		cobra.FixedCompletions([]string{"auto", "overlay", "copy", "btrfs"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("tier",
		cobra.FixedCompletions([]string{"auto", "workspace", "process", "supervised", "gvisor"},
			cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("net",
		cobra.FixedCompletions([]string{"off", "rules", "host"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("user",
		cobra.FixedCompletions([]string{"me", "root"}, cobra.ShellCompDirectiveNoFileComp)))
}

// make makes a sandbox as the flags say, showing how far it is.
func (a *app) make(cmd *cobra.Command, mk *making) (sb wire.Sandbox, err error) {
	mk.req.Limits = strings.Join(mk.limits, ",")
	if mk.req.Env, err = a.env(mk.req.Env); err != nil {
		return sb, err
	}
	if err := mk.keep.fill(&mk.req); err != nil {
		return sb, err
	}
	if err := mk.live.fill(cmd, &mk.req); err != nil {
		return sb, err
	}
	if mk.req.Repo, err = a.repository(&mk.repo, mk.from); err != nil {
		return sb, err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	body, err := a.source(ctx, mk.from, &mk.req)
	if err != nil {
		return sb, err
	}
	if body != nil {
		defer body.Close()
	}
	if err := a.policies(mk); err != nil {
		return sb, err
	}
	c, err := a.client()
	if err != nil {
		return sb, err
	}
	show, done := a.progress()
	sb, err = c.Create(ctx, mk.req, show)
	done()
	if err != nil {
		return sb, err
	}
	a.warn(sb.Warnings)
	for _, n := range sb.Notes {
		a.note("%s", tty.Clean(n))
	}
	return sb, nil
}

// policies fills in the files of the policy.
func (a *app) policies(mk *making) (err error) {
	if net := mk.req.Net; mk.policy.rules() && net != "" && net != string(policy.NetRules) {
		return &usageError{msg: "--net " + net + " does not go with --allow, --preset or --ask",
			hint: "leave --net out: they make it rules"}
	}
	if mk.req.From.Kind != wire.SourceSandbox && !mk.policy.noFiles {
		if mk.req.Policy, err = a.found(); err != nil {
			return err
		}
	}
	said, err := mk.policy.said()
	mk.req.Policy = append(mk.req.Policy, said...)
	return err
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
			return nil, &usageError{msg: "an archive is wanted on stdin, and that is a terminal",
				hint: "pipe one in: tar -c . | coppice create --from -"}
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
	if st.IsDir() && a.getenv("COPPICE_HOST") != "" {
		return nil, &usageError{msg: "--from " + from + " is a directory of this machine, and COPPICE_HOST names another",
			hint: "send it: tar -C " + from + " -c . | coppice create --from -"}
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
