package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/tty"
)

// bundleResult is what verify --bundle writes as JSON.
type bundleResult struct {
	Sandbox   string      `json:"sandbox"`             // whose records it has
	Records   int64       `json:"records"`             // how many
	Origin    string      `json:"origin"`              // name of the log
	Size      int64       `json:"size"`                // records of the log
	Key       string      `json:"key"`                 // that signed
	Trusted   bool        `json:"trusted"`             // it follows from a key that was given
	Grown     bool        `json:"grown,omitempty"`     // from the checkpoint that was given
	Witnessed int64       `json:"witnessed,omitempty"` // size of the log that the given witnesses signed
	Seen      []time.Time `json:"seen,omitempty"`      // when each of them did
	Captures  int         `json:"captures"`            // that lie in the bundle
	Absent    []string    `json:"absent,omitempty"`    // captures that were not kept
	First     time.Time   `json:"first,omitzero"`      // time of the first record
	Last      time.Time   `json:"last,omitzero"`       // of the last one
}

// demands is what verify asks of records.
type demands struct {
	bundle     string   // the file to verify; "" for the store
	keys       []string // that are trusted
	checkpoint string   // a file
	witnesses  []string // verifier keys
}

// verifyBundle verifies a bundle by what is in it and what was given, and nothing else: it
// asks no daemon, and needs no home.
func (a *app) verifyBundle(cmd *cobra.Command, ask demands) error {
	d := format.Demands{Keys: ask.keys, Witnesses: ask.witnesses}
	if ask.checkpoint != "" {
		text, err := a.noteFile(ask.checkpoint)
		if err != nil {
			return err
		}
		d.Old = []byte(text)
	}
	f, err := os.Open(ask.bundle)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = usagef("%s is not a regular file: a bundle is read more than once", tty.Quote(ask.bundle))
	}
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	v, err := format.VerifyBundle(ctx, f, info.Size(), d)
	if err != nil {
		return err
	}
	res := bundleResult{Sandbox: string(v.Sandbox), Records: v.Records, Origin: v.Log.Origin, Size: v.Log.Size, Key: v.Key,
		Trusted: v.Trusted, Grown: v.Grown,
		Witnessed: v.Witnessed, Seen: v.Seen, Captures: v.Blobs, Absent: v.Absent, First: v.First, Last: v.Last}
	err = a.print(res, func(w io.Writer) error { return a.bundleText(w, &res) })
	if !res.Trusted {
		a.note("no --key given: this proves only that the holder of key %s made the bundle; "+
			"compare it with the host owner's, "+
			"or use --key", tty.Clean(res.Key))
	}
	return err
}

func (a *app) bundleText(w io.Writer, res *bundleResult) error {
	var t tty.Table
	t.Row("sandbox", tty.Clean(res.Sandbox))
	t.Row("records", fmt.Sprintf("%d, complete and unmodified", res.Records))
	if res.Records > 0 {
		t.Row("from", res.First.Format(time.RFC3339)+" to "+res.Last.Format(time.RFC3339))
	}
	t.Row("captures", fmt.Sprintf("%d, and %d not stored", res.Captures, len(res.Absent)))
	t.Row("log", fmt.Sprintf("%s, of %d records", tty.Clean(res.Origin), res.Size))
	t.Row("signed by", tty.Clean(res.Key))
	if res.Grown {
		t.Row("grown", "from the given checkpoint")
	}
	for _, at := range res.Seen {
		t.Row("witnessed", fmt.Sprintf("at size %d, %s", res.Witnessed, at.Format(time.RFC3339)))
	}
	return t.Write(w)
}
