package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) verify() *cobra.Command {
	var asked demands
	cmd := &cobra.Command{
		Use: "verify [NAME] [flags]", Short: "Check that stored data is what was stored", GroupID: groupStore,
		Long: `Read every layer of a sandbox, or of the whole store, and compare it with its
digest; and check that its records, or all, are those that were appended: every one, in
order, and in the signed log. What is damaged is printed, one a line; of records the first
that does not fit. NAME is the id where the sandbox was removed: then its records alone
are checked.

With --checkpoint the log must have grown from the one in FILE, which coppice ledger
checkpoint printed before: else somebody wrote another log. With --key the log's keys must
follow from one of those.

With --bundle it is what coppice ledger export wrote that is verified, by what is in it alone:
no daemon is asked, and nothing else of the host that it is from is needed. Of records the first
that does not fit is named. With --witness-key these witnesses must have cosigned it.
REMOTE/NAME is a proposal that was pulled: its objects and its records are checked anew.`,
		Example: `  coppice system verify
  coppice system verify box --checkpoint log.checkpoint
  coppice system verify --bundle box.tar --key "$KEY"`,
		Annotations: map[string]string{exits: "  0  all is well\n" +
			"  1  something is damaged, or the check failed\n" +
			"  2  the command line is wrong"},
		Args:              between(0, 1, "one name"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			switch {
			case asked.bundle != "" && name != "":
				return usagef("a bundle says itself whose records it has: give --bundle, or a name")
			case asked.bundle != "":
				return a.verifyBundle(cmd, asked)
			case isPulled(name):
				return a.verifyPulled(cmd, name, asked)
			case len(asked.witnesses) > 0:
				return &usageError{msg: "--witness-key is for a bundle", hint: "give --bundle FILE"}
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			res, err := a.verifyStore(ctx, name, asked)
			if err != nil {
				return err
			}
			err = a.print(res, func(w io.Writer) error { return a.printVerified(w, &res) })
			if err == nil && len(res.Damage) > 0 {
				found := plainError(fmt.Sprintf("damage was found in %d places", len(res.Damage)))
				return &exitCode{code: exitError, err: found}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&asked.keys, "key", nil, "trust this verifier `KEY`, and none that does not follow from it")
	f.StringVar(&asked.checkpoint, "checkpoint", "", "the log must have grown from the checkpoint in `FILE`")
	f.StringVar(&asked.bundle, "bundle", "", "verify the bundle in `FILE`, and not the store")
	f.StringSliceVar(&asked.witnesses, "witness-key", nil,
		"of a bundle: this witness, by its verifier `KEY`, must have cosigned it")
	return cmd
}

// verifyStore has the daemon verify the layers of a sandbox, or with name "" of all, and the
// records. Records that do not fit are damage. Of a sandbox that was removed the records
// alone are verified.
func (a *app) verifyStore(ctx context.Context, name string, asked demands) (res wire.VerifyResult, err error) {
	c, err := a.client()
	if err != nil {
		return res, err
	}
	ask, err := ledgerDemands(name, asked.keys, asked.checkpoint)
	if err != nil {
		return res, err
	}
	show, done := a.progress()
	res, err = c.Verify(ctx, name, show)
	done()
	removed := client.IsKind(err, client.KindNotFound) && name != ""
	if !removed && (err != nil || ask == nil) {
		return res, err
	}
	if ask == nil {
		ask = &wire.LedgerVerify{}
	}
	found, lerr := c.VerifyLedger(ctx, name, *ask)
	switch {
	case client.IsKind(lerr, "corrupt"):
		res.Damage = append(res.Damage, wire.Damage{Sandbox: name, Message: lerr.Error()})
		err = nil
	case lerr == nil:
		res.Records, err = found.Records, nil
	case err == nil:
		err = lerr
	}
	return res, err
}

// printVerified writes the damage, a line for each, and notes how much was checked.
func (a *app) printVerified(w io.Writer, res *wire.VerifyResult) error {
	for _, d := range res.Damage {
		if _, err := fmt.Fprintln(w, damageLine(d)); err != nil {
			return err
		}
	}
	a.note("checked %s, %s; %d not sealed yet; %s%s",
		tty.Count(res.Layers, "layer"), tty.Bytes(res.Bytes), res.Unsealed-res.Unverifiable,
		tty.Count(int(res.Records), "record"), images(res.Images))
	if res.Unverifiable > 0 {
		a.note("%s cannot be verified: the paths are too long or too deep for a manifest",
			tty.Count(res.Unverifiable, "layer"))
	}
	return nil
}

// damageLine says what is damaged, and where that is.
func damageLine(d wire.Damage) string {
	var where []string
	for _, f := range [][2]string{
		{"sandbox", d.Sandbox}, {"snapshot", d.Snapshot}, {"layer", d.Layer}, {"memory image", d.Image},
	} {
		if f[1] != "" {
			where = append(where, f[0]+" "+tty.Clean(f[1]))
		}
	}
	if d.Path != "" {
		where = append(where, tty.Quote(d.Path))
	}
	line := tty.Clean(d.Message)
	if len(where) > 0 {
		line = strings.Join(where, ", ") + ": " + line
	}
	return line
}

// ledgerDemands is what is asked of the ledger besides; nil is nothing.
func ledgerDemands(name string, keys []string, checkpoint string) (*wire.LedgerVerify, error) {
	if len(keys) == 0 && checkpoint == "" {
		return nil, nil
	}
	if name == "" {
		return nil, &usageError{
			msg:  "--key and --checkpoint are for the records of one sandbox",
			hint: "name it; \"host\" has what belongs to none",
		}
	}
	ask := &wire.LedgerVerify{Keys: keys}
	if checkpoint == "" {
		return ask, nil
	}
	text, err := os.ReadFile(checkpoint)
	ask.Checkpoint = string(text)
	return ask, err
}

// plainError is an error with a text and nothing else.
type plainError string

func (e plainError) Error() string { return string(e) }

func (a *app) probe() *cobra.Command {
	return &cobra.Command{
		Use: "probe", Short: "Show what this host can do", GroupID: groupStore,
		Long: `Show what this host can do for each tier and driver, found by trying it, and for
each lack the command or setting that mends it.

Under home it shows the protections that the host has given to sandboxes of this
home, without which none starts any more, and those that sandboxes do without.`,
		Example: "  coppice system probe",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Probe(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.printProbe(w, &res) })
		},
	}
}

// orNone shows a name, or that there is none.
func orNone(name string) string {
	if name == "" {
		return "none"
	}
	return tty.Clean(name)
}

// images counts memory images, where there are any.
func images(n int) string {
	if n == 0 {
		return ""
	}
	return "; " + tty.Count(n, "memory image")
}
