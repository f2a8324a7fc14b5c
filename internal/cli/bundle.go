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
	Sandbox   string      `json:"sandbox"`             // sandbox of the records
	Records   int64       `json:"records"`             // number of records
	Origin    string      `json:"origin"`              // name of the log
	Size      int64       `json:"size"`                // number of records in the log
	Key       string      `json:"key"`                 // the key that signed
	Trusted   bool        `json:"trusted"`             // it follows from a given key
	Grown     bool        `json:"grown,omitempty"`     // from the given checkpoint
	Witnessed int64       `json:"witnessed,omitempty"` // size of the log that the given witnesses signed
	Seen      []time.Time `json:"seen,omitempty"`      // when each witness signed
	Captures  int         `json:"captures"`            // number of captures in the bundle
	Absent    []string    `json:"absent,omitempty"`    // captures that were not stored
	First     time.Time   `json:"first,omitzero"`      // time of the first record
	Last      time.Time   `json:"last,omitzero"`       // time of the last record
}

// demands are the user's requirements for records.
type demands struct {
	bundle     string   // the file to verify; "" for the store
	keys       []string // trusted keys
	checkpoint string   // file with an earlier checkpoint
	witnesses  []string // verifier keys
}

// verifyBundle verifies a bundle by its content and the given keys, checkpoint and witnesses only: it needs neither a
// daemon nor a home.
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
