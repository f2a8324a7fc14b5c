package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) create() *cobra.Command {
	var mk making
	cmd := &cobra.Command{
		Use: "create [NAME] [flags]", Short: "Create a sandbox", GroupID: groupBox,
		Long: `Create a sandbox and print its name. --from selects its root file system:

  host           this machine's root; nothing is copied or changed (default)
  host-copy      an imported copy of this machine's system directories
  DIR            a directory: a path that contains "/"
  TARBALL        tar (also gzip, zstd, xz): a path, an http(s) URL, or "-"
  SANDBOX[@REF]  a snapshot of another sandbox (default: its current state)

With --user root, commands run as root in the sandbox. Unless the daemon is
root, this requires subordinate IDs (package uidmap); without them root is
emulated and cannot change files of other users: use --from host-copy then.

A new sandbox has its own machine ID, which is not part of its history, if its
source has one, not behind a link; --same-identity keeps that of the source.

In a git repository, a sandbox from host works on a new branch coppice/NAME; see
docs/git.md. The policy is merged from files and flags; see docs/policy.md. For
limits and retention see docs/LIMITS.md; for --grant see "coppice help grant".
Mounts such as /tmp have no history; nor have the paths of --ignore, which
rewinds leave as they are.`,
		Example: `  coppice create box
  coppice create fix-auth --at v1.2
  coppice create py --preset pypi --allow api.example.com
  coppice create web --preset npm --ask --label team=web
  coppice create app --ignore node_modules --ignore ~/.cache
  coppice create made --from ./rootfs.tar.zst --user root --limit memory=4GiB
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
				a.note("created %s from %s: driver %s, tier %s, net %s, as %s%s", tty.Clean(sb.Name), tty.Clean(sb.From),
					tty.Clean(sb.Driver), tty.Clean(sb.Tier), tty.Clean(sb.Net), tty.Clean(sb.User), chosenTier(sb))
				_, err := fmt.Fprintln(w, tty.Clean(sb.Name))
				return err
			})
		},
	}
	mk.flags(a, cmd)
	return cmd
}

// chosenTier returns the end of the line about a new sandbox: why its tier was chosen. It is empty if a flag requested
// the tier, and for tier workspace, about which a warning says more.
func chosenTier(sb wire.Sandbox) string {
	if sb.TierReason == "" || sb.TierReason == "requested" || sb.Tier == string(policy.Workspace) {
		return ""
	}
	return "; " + tty.Clean(sb.Tier) + ": " + tty.Clean(sb.TierReason)
}

// making has the flags for a new sandbox.
type making struct {
	req     wire.CreateRequest
	from    string
	labels  labelling
	limits  []string
	keep    keeping
	live    living
	policy  wanting
	ignore  []string
	locked  string // --confine
	runtime string // --runtime
	grants  []string
	repo    repository
}

// flags adds the flags of every command that creates a sandbox.
func (mk *making) flags(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&mk.from, "from", "host", "root file system `SOURCE`: host, host-copy, DIR, TARBALL or SANDBOX[@REF]")
	f.StringVar(&mk.req.User, "user", "",
		"`USER` of its commands: root, me (your user) or a user of the sandbox (default: me from host, else root)")
	f.StringVar(&mk.req.Driver, "driver", "", "storage driver: auto (default), overlay, copy, btrfs")
	f.StringVar(&mk.req.Tier, "tier", "",
		"isolation tier: auto (default), workspace, process, supervised, container,\ngvisor")
	f.StringVar(&mk.runtime, "runtime", "",
		"OCI runtime of tier container, `NAME` or absolute path: runc (default), crun")
	f.StringVar(&mk.locked, "confine", "",
		"walls of tier workspace: auto (default), require (all, or no start), off")
	f.StringVar(&mk.req.Net, "net", "", "network mode: off (default), rules (what the policy allows), host")
	f.StringArrayVarP(&mk.req.Env, "env", "e", nil,
		"set an environment variable for all commands, `K=V`; K alone passes the current value")
	f.BoolVar(&mk.req.SameIdentity, "same-identity", false,
		"keep the machine ID of the source; of a sandbox, also its SSH host keys")
	f.StringArrayVar(&mk.grants, "grant", nil,
		"let it use a secret, `GRANT[=SECRET]`, and reach the hosts of it; also ,for=8h and other flags of "+
			"\"coppice grant\"; repeatable")
	f.BoolVar(&mk.req.GrantsLater, "grants-later", false, "allow \"coppice grant\" while it runs")
	mk.labels.flag(cmd, "label the sandbox, `KEY=VALUE`; repeatable; see \"coppice help ls\"")
	f.StringVar(&mk.req.Self, "self", "",
		"operations allowed from inside, at "+wire.SelfSocket+
			": off, read (default: log, show, diff, mark), rewind (also commit, tag, trial, rewind in place)")
	mk.repo.flags(cmd)
	mk.policy.flags(cmd)
	mk.policy.automatic(cmd)
	f.StringArrayVar(&mk.ignore, "ignore", nil,
		"leave the directory `PATH` out of the history, as in node_modules or ~/.cache; it is empty at first; repeatable")
	mk.keep.flags(cmd)
	mk.live.flags(cmd)
	f.StringArrayVar(&mk.limits, "limit", nil,
		"`LIMITS` of the sandbox, as in memory=4GiB,cpus=1.5, or pids=512,disk=10GiB; of a command, as in "+
			"time=30m,output=100MiB; of a process, as in files=1024; repeatable")
	must(cmd.RegisterFlagCompletionFunc("grant", a.grantables))
	must(cmd.RegisterFlagCompletionFunc("from", a.sources))
	must(cmd.RegisterFlagCompletionFunc("self",
		fixed(wire.SelfOff, wire.SelfRead, wire.SelfRewind)))
	must(cmd.RegisterFlagCompletionFunc("driver", fixed("auto", "overlay", "copy", "btrfs")))
	must(cmd.RegisterFlagCompletionFunc("tier",
		fixed("auto", "workspace", "process", "supervised", "container", "gvisor")))
	must(cmd.RegisterFlagCompletionFunc("runtime", fixed(policy.Runtimes()...)))
	must(cmd.RegisterFlagCompletionFunc("confine", fixed("auto", "require", "off")))
	must(cmd.RegisterFlagCompletionFunc("net",
		fixed("off", "rules", "host")))
	must(cmd.RegisterFlagCompletionFunc("user",
		fixed("me", "root")))
}

// make creates a sandbox from the flags, and shows the progress.
func (a *app) make(cmd *cobra.Command, mk *making) (sb wire.Sandbox, err error) {
	mk.req.Limits = strings.Join(mk.limits, ",")
	if mk.req.Labels, err = label.Parse(mk.labels); err != nil {
		return sb, err
	}
	if mk.req.Env, err = a.env(mk.req.Env, mk.req.Name); err != nil {
		return sb, err
	}
	if mk.req.Grants, mk.policy.granted, err = a.grantsOf(cmd.Context(), mk.grants); err != nil {
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
	if err := a.askConsent(ctx, c, &mk.req); err != nil {
		return sb, err
	}
	if mk.from == "host" && a.getenv("COPPICE_HOST") == "" { // otherwise it is a directory of another machine
		mk.req.Dir = a.workDir()
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

// workDir returns the current directory, in which the commands of a sandbox from the host start; "" if it was
// removed, or if the host is another machine.
func (a *app) workDir() string {
	dir, err := os.Getwd()
	if err != nil || a.getenv("COPPICE_HOST") != "" {
		return ""
	}
	return dir
}

// policies fills in the files of the policy.
func (a *app) policies(mk *making) (err error) {
	if net := mk.req.Net; len(mk.policy.granted) > 0 && net != "" && net != string(policy.NetRules) {
		return &usageError{msg: "--net " + net + " cannot be combined with --grant",
			hint: "drop --net: --grant implies --net rules, and allows the hosts of the grant"}
	}
	if net := mk.req.Net; mk.policy.rules() && net != "" && net != string(policy.NetRules) {
		return &usageError{msg: "--net " + net + " cannot be combined with --allow, --preset or --ask",
			hint: "drop --net: these flags imply --net rules"}
	}
	if mk.req.From.Kind != wire.SourceSandbox && !mk.policy.noFiles {
		if mk.req.Policy, err = a.found(); err != nil {
			return err
		}
	}
	said, err := mk.policy.said()
	if err != nil {
		return err
	}
	mk.req.Policy = append(mk.req.Policy, said...)
	if mk.locked != "" {
		locked, err := confining(mk.locked)
		if err != nil {
			return err
		}
		mk.req.Policy = append(mk.req.Policy, locked)
	}
	if mk.runtime != "" {
		chosen, err := running(mk.runtime)
		if err != nil {
			return err
		}
		mk.req.Policy = append(mk.req.Policy, chosen)
	}
	if len(mk.ignore) == 0 {
		return nil
	}
	ignored, err := ignoring(mk.ignore)
	mk.req.Policy = append(mk.req.Policy, ignored)
	return err
}

// ignoring returns the paths of --ignore as a policy file. A path that is not absolute or below the home is below the
// current directory.
func ignoring(paths []string) (wire.PolicyFile, error) {
	var d policy.Document
	for _, s := range paths {
		abs := s
		if s != "" && s != "~" && !strings.HasPrefix(s, "~/") {
			var err error
			if abs, err = filepath.Abs(s); err != nil {
				return wire.PolicyFile{}, fault.Wrap(err, "find %s", s)
			}
		}
		p, err := policy.ParsePath(abs, "/")
		if err != nil {
			return wire.PolicyFile{}, fault.New(fault.Invalid, "--ignore").Because(err).WithHint("%s", fault.HintOf(err))
		}
		d.Ignore = append(d.Ignore, policy.Said[policy.Path]{Value: p})
	}
	text, err := d.MarshalJSON()
	return wire.PolicyFile{Level: wire.PolicyFlags, Name: "--ignore", Text: string(text)}, err
}

// confining returns --confine as a policy file.
func confining(how string) (wire.PolicyFile, error) {
	all := []policy.Confine{policy.ConfineAuto, policy.ConfineRequire, policy.ConfineOff}
	if !slices.Contains(all, policy.Confine(how)) {
		return wire.PolicyFile{}, usagef("unknown --confine %q: use auto, require or off", how)
	}
	text, err := policy.Document{Confine: &policy.Said[policy.Confine]{Value: policy.Confine(how)}}.MarshalJSON()
	return wire.PolicyFile{Level: wire.PolicyFlags, Name: "--confine", Text: string(text)}, err
}

// running returns --runtime as a policy file.
func running(runtime string) (wire.PolicyFile, error) {
	value, err := policy.ParseRuntime(runtime)
	if err != nil {
		return wire.PolicyFile{}, usagef("invalid --runtime %q: use a name, such as runc, or an absolute path", runtime)
	}
	text, err := policy.Document{Runtime: &policy.Said[string]{Value: value}}.MarshalJSON()
	return wire.PolicyFile{Level: wire.PolicyFlags, Name: "--runtime", Text: string(text)}, err
}

// must panics on an error that only a bug can cause, such as an unknown flag name.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// source fills in req.From, and returns what the caller must close afterwards.
func (a *app) source(ctx context.Context, from string, req *wire.CreateRequest) (io.Closer, error) {
	switch {
	case from == "host" || from == "host-copy":
		req.From = wire.Source{Kind: from}
		return nil, nil
	case from == "":
		return nil, &usageError{msg: "--from is empty", hint: "name host, host-copy, a path, a URL or a sandbox"}
	case from == "-":
		if tty.IsTerminal(a.stdin) {
			return nil, &usageError{msg: "cannot read an archive from stdin: stdin is a terminal",
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

// archiveName reports whether a name without a slash is that of an archive, and not of a sandbox.
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
		return nil, &usageError{msg: "--from " + from + " is a local directory, and COPPICE_HOST names another machine",
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

// download opens an archive on the web. The CLI fetches it, not the daemon, so that it is fetched with this user's
// network, proxies and rights.
func download(ctx context.Context, url string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, usagef("invalid URL %q", url)
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
