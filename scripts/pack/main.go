// Command pack writes the parts of a release that are the same bytes for the same input, wherever and whenever it runs:
// archives, the OCI image, the list of components, the release notes and the checksums. scripts/release runs it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

const usage = `usage: pack archive FILE DIR              write DIR as FILE, a .tar.gz or .zip
       pack image FILE VERSION REVISION DIR   write DIR/ARCH for each architecture as an OCI image
       pack components VERSION            read a CycloneDX document, write that of the release
       pack notes VERSION                 read CHANGELOG.md, write the section of VERSION
       pack sums DIR                      write DIR/SHA256SUMS, and list the files of DIR
SOURCE_DATE_EPOCH is the time of all files, in seconds`

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH"), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// run executes one command. epoch is the value of SOURCE_DATE_EPOCH.
func run(args []string, epoch string, in io.Reader, out io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch {
	case command == "archive" && len(args) == 2:
		return create(args[0], epoch, func(w io.Writer, at time.Time) error {
			return writeArchive(w, args[0], os.DirFS(args[1]), at)
		})
	case command == "image" && len(args) == 4:
		return create(args[0], epoch, func(w io.Writer, at time.Time) error {
			return writeImage(w, image{version: args[1], revision: args[2], created: at}, os.DirFS(args[3]))
		})
	case command == "components" && len(args) == 1:
		return components(out, in, args[0])
	case command == "notes" && len(args) == 1:
		return notes(out, in, args[0])
	case command == "sums" && len(args) == 1:
		return sums(out, args[0])
	}
	return errors.New(usage)
}

// create writes a new file of a release with the time that epoch names. It replaces no file.
func create(name, epoch string, write func(io.Writer, time.Time) error) (err error) {
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("invalid SOURCE_DATE_EPOCH %q: must be a number of seconds", epoch)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f, time.Unix(seconds, 0).UTC())
}
