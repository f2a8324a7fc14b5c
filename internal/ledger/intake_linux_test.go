package ledger

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// FuzzIntake checks that an intake that can be read has the lines that were written.
func FuzzIntake(f *testing.F) {
	dir := f.TempDir()
	l, _ := opened(f, dir, Options{})
	name, err := l.WriteBlob(boxA, []byte("output\n"))
	if err != nil {
		f.Fatal(err)
	}
	for _, d := range []Draft{exitWith(boxA, 1, name), draft(boxB, 2)} {
		if _, err := l.Append(f.Context(), d); err != nil {
			f.Fatal(err)
		}
	}
	whole, err := os.ReadFile(filepath.Join(dir, fileIntake))
	if err != nil {
		f.Fatal(err)
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(bytes.Replace(whole, []byte("B "), []byte("B host "), 1))
	f.Add(commit((&capture{id: format.Host, name: name}).encode(nil), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		batches, end, err := parseIntake(b)
		if err != nil {
			return
		}
		var again []byte
		for _, one := range batches {
			var lines []byte
			for _, c := range one.captures {
				lines = c.encode(lines)
			}
			for _, e := range one.entries {
				lines = e.encode(lines)
			}
			again = append(again, commit(lines, one.checkpoint)...)
		}
		if !bytes.Equal(again, b[:end]) {
			t.Errorf("%q is written %q", b[:end], again)
		}
	})
}
