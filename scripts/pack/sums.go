package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sumsFile has the digests of all other files of a release, as sha256sum prints them.
const sumsFile = "SHA256SUMS"

// sums writes SHA256SUMS to dir, and lists the sizes and names of the files in dir.
func sums(out io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, entry := range entries {
		if entry.Name() == sumsFile {
			continue
		}
		f, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		size, err := io.Copy(sum, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sum.Sum(nil), entry.Name())
		fmt.Fprintf(out, "%6.1f MB  %s\n", float64(size)/1e6, entry.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(list.String()), 0o644)
}
