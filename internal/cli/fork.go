package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) fork() *cobra.Command {
	var (
		req  wire.ForkRequest
		more wanting
	)
	cmd := &cobra.Command{
		Use: "fork NAME [NEW...] [flags]", Short: "Make more sandboxes from one", GroupID: groupBox,
		Long: `Make new sandboxes that begin as a snapshot of this one, and print their names.
They share every layer with it, and copy nothing. Without --at it is the present
state, which is captured first. They have its policy, and what --policy, --allow,
--preset and --ask add to that; rules that hold for a time are not theirs. With --tier
their processes are confined in another way, weaker or stronger: a snapshot is of files,
whatever tier it was made in.

With --memory processes go on in each fork, in tier gvisor: as they are now, or were in
the snapshot of --at, which has to have memory. Nothing of a fork passes its gate until it
has a host name, machine id, randomness and SSH host keys of its own, and the programs in
/etc/coppice/on-fork.d have run in it. A fork for which that fails is quarantined: see
coppice status, and try again with coppice process resume. What a program has seeded by itself,
as Python's random, is the same in each; the policy's memory.fork can deny such forks.`,
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
				return usagef("-n %d: a number of 1 or more is wanted", req.N)
			case cmd.Flags().Changed("count") && len(req.Names) > req.N:
				return usagef("-n %d, and %d names", req.N, len(req.Names))
			}
			var err error
			if req.Policy, err = more.said(); err != nil {
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
					a.warn([]string{sb.Name + " is quarantined: " + q.Reason + "; try again with: coppice process resume " + sb.Name})
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
	f.IntVarP(&req.N, "count", "n", 0, "make `N` in all; those without a name get one")
	f.BoolVar(&req.Memory, "memory", false, "let processes go on in the forks")
	f.StringVar(&req.At, "at", "", "begin as snapshot `REF`")
	f.StringVar(&req.Tier, "tier", "",
		"how their processes are confined: process, supervised, gvisor (default: as this one's)")
	must(cmd.RegisterFlagCompletionFunc("tier",
		cobra.FixedCompletions([]string{"process", "supervised", "gvisor"}, cobra.ShellCompDirectiveNoFileComp)))
	more.flags(cmd)
	return cmd
}
