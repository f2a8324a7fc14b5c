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

func (a *app) systemVerify() *cobra.Command {
	var asked demands
	cmd := &cobra.Command{
		Use: "verify [NAME] [flags]", Short: "Verify the integrity of stored data",
		Long: `Verify the layers of a sandbox, or of the whole store, against their digests,
and its records, which must be complete, in order, and in the signed log. Damage
is printed, one line each; of records, the first that does not match. Name a
removed sandbox by its ID: only its records are verified.

With --checkpoint, the log must extend the checkpoint in FILE, as printed
earlier by "coppice ledger checkpoint". With --key, the keys of the log must
descend from a given one.

With --bundle, verify the output of "coppice ledger export" offline, without a
daemon or the host that it comes from. With --witness-key, the given witnesses
must have cosigned it. REMOTE/NAME is a pulled proposal: its objects and records
are verified again.`,
		Example: `  coppice system verify
  coppice system verify box --checkpoint log.checkpoint
  coppice system verify --bundle box.tar --key "$KEY"`,
		Annotations: map[string]string{exits: "  0  everything was verified\n" +
			"  1  the verification failed; for others see \"coppice help exit-codes\"\n" +
			"  2  the command line is wrong\n" +
			"  9  damage was found: in the store, or in FILE"},
		Args:              between(0, 1, "one name"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			switch {
			case asked.bundle != "" && name != "":
				return usagef("--bundle and a name are mutually exclusive")
			case asked.bundle != "":
				return a.verifyBundle(cmd, asked)
			case isPulled(name):
				return a.verifyPulled(cmd, name, asked)
			case len(asked.witnesses) > 0:
				return &usageError{msg: "--witness-key requires --bundle", hint: "use --bundle FILE"}
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			res, err := a.verifyStore(ctx, name, asked)
			if err != nil {
				return err
			}
			err = a.print(res, func(w io.Writer) error { return a.printVerified(w, &res) })
			if err == nil && len(res.Damage) > 0 {
				found := plainError(fmt.Sprintf("found damage in %d places", len(res.Damage)))
				return &exitCode{code: exitCorrupt, err: found}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&asked.keys, "key", nil, "trust only verifier `KEY` and its successors")
	f.StringVar(&asked.checkpoint, "checkpoint", "", "require that the log extends the checkpoint in `FILE`")
	f.StringVar(&asked.bundle, "bundle", "", "verify the bundle in `FILE` instead of the store")
	f.StringSliceVar(&asked.witnesses, "witness-key", nil,
		"with --bundle: require the cosignature of the witness with verifier `KEY`")
	return cmd
}

// verifyStore has the daemon verify the layers of a sandbox, or of all if name is "", and the records. Records that
// fail verification are reported as damage. For a removed sandbox only the records are verified.
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

// printVerified writes a line for each damage, and notes how much was verified.
func (a *app) printVerified(w io.Writer, res *wire.VerifyResult) error {
	for _, d := range res.Damage {
		if _, err := fmt.Fprintln(w, damageLine(d)); err != nil {
			return err
		}
	}
	a.note("verified %s, %s; %d not finalized yet; %s%s",
		tty.Count(res.Layers, "layer"), tty.Bytes(res.Bytes), res.Unfinalized-res.Unverifiable,
		tty.Count(int(res.Records), "record"), images(res.Images))
	if res.Unverifiable > 0 {
		a.note("cannot verify %s: paths are too long or too deep for a manifest",
			tty.Count(res.Unverifiable, "layer"))
	}
	return nil
}

// damageLine describes damage and its location.
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

// ledgerDemands returns the additional requirements for the audit log; nil if there are none.
func ledgerDemands(name string, keys []string, checkpoint string) (*wire.LedgerVerify, error) {
	if len(keys) == 0 && checkpoint == "" {
		return nil, nil
	}
	if name == "" {
		return nil, &usageError{
			msg:  "--key and --checkpoint require the name of a sandbox",
			hint: "name a sandbox; \"host\" for records that belong to none",
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

// plainError is an error that consists only of a text.
type plainError string

func (e plainError) Error() string { return string(e) }
