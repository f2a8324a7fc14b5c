package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) fork() *cobra.Command {
	var (
		req    wire.ForkRequest
		more   wanting
		labels labelling
	)
	cmd := &cobra.Command{
		Use: "fork NAME [NEW...] [flags]", Short: "Fork a sandbox", GroupID: groupBox,
		Long: `Create sandboxes that start from a snapshot of this one, and print their names.
They share its layers; nothing is copied. The default snapshot is the current
state, which is captured first. Forks have the sandbox's policy, without
temporary rules, plus what the policy flags add, and its labels, plus those of
--label. Of its grants, they have those that were given with --fork reissue, or
all with --grants reissue. --tier may select a weaker or stronger tier, but
neither workspace nor, for a sandbox of tier workspace, any other.

Each fork has its own machine ID, which is not part of its history. Before its
first command it gets new SSH host keys, and the programs in its
/etc/coppice/on-fork.d run. --same-identity keeps everything as it is.

With --memory, processes continue in each fork, in tier gvisor; a snapshot given
by --at must include memory. A fork reaches no network until it is re-keyed
(host name, machine ID, entropy, SSH host keys) and its hooks in
/etc/coppice/on-fork.d have run. If a step fails, the fork is quarantined: see
"coppice status", and retry with "coppice process resume". For what forks share
see docs/guides/memory.md.`,
		Example: `  coppice fork box try1 try2
  coppice fork box -n 10 --at HEAD~2
  coppice fork box online --preset npm
  coppice fork box stronger --tier gvisor
  coppice fork box -n 8 --memory`,
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Names = args[1:]
			switch {
			case cmd.Flags().Changed("count") && req.N < 1:
				return usagef("invalid -n %d: must be at least 1", req.N)
			case cmd.Flags().Changed("count") && len(req.Names) > req.N:
				return usagef("-n %d does not match %d names", req.N, len(req.Names))
			}
			var err error
			if req.Policy, err = more.said(); err != nil {
				return err
			}
			if req.Labels, err = label.Parse(labels); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Fork(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			for _, sb := range res.Sandboxes {
				a.warn(sb.Warnings)
				if q := sb.Quarantine; q != nil {
					a.warn([]string{sb.Name + " is quarantined: " + q.Reason + "; retry with: coppice process resume " + sb.Name})
				}
			}
			return a.print(res, func(w io.Writer) error {
				for _, sb := range res.Sandboxes {
					if _, err := fmt.Fprintln(w, tty.Clean(sb.Name)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.IntVarP(&req.N, "count", "n", 0, "create `N` forks; those without a name get a generated one")
	f.BoolVar(&req.Memory, "memory", false, "continue running processes in the forks")
	f.BoolVar(&req.SameIdentity, "same-identity", false, "keep the machine ID and SSH host keys of the sandbox")
	f.StringVar(&req.Grants, "grants", "",
		"which grants the forks get, with new placeholders: none, reissue (all; default: those with --fork reissue)")
	must(cmd.RegisterFlagCompletionFunc("grants", fixed("none", "reissue")))
	f.StringVar(&req.At, "at", "", "start from snapshot `REF`")
	f.StringVar(&req.Tier, "tier", "",
		"isolation tier: process, supervised, container, gvisor (default: that of the sandbox)")
	must(cmd.RegisterFlagCompletionFunc("tier",
		fixed("process", "supervised", "container", "gvisor")))
	must(cmd.RegisterFlagCompletionFunc("at", a.refOf))
	labels.flag(cmd, "add or replace a label in the forks, `KEY=VALUE`; repeatable")
	more.flags(cmd)
	return cmd
}
