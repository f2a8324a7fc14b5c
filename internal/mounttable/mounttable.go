//go:build linux

// Package mounttable reads the mounts of the calling process. It wraps github.com/moby/sys/mountinfo, which reads
// lines of at most 64 KiB, for lines of any length: the options of a file system may be longer, such as those of an
// overlay with hundreds of layers. A single such mount on the host must not prevent sandboxes from starting.
package mounttable

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/moby/sys/mountinfo"
)

// maxLine is the maximum number of bytes of a line that are passed on. bufio.Scanner accepts 64 KiB.
const maxLine = 60 << 10

// List returns the mounts of the calling process that filter accepts, or all if it is nil. VFSOptions may be
// truncated, to about 60 KiB.
func List(filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Parse(f, filter)
}

// Parse is List for the text of /proc/PID/mountinfo.
func Parse(r io.Reader, filter mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	var table bytes.Buffer
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadBytes('\n')
		if len(line) > maxLine {
			// The options are the last field (proc_pid_mountinfo(5)).
			if bytes.LastIndexByte(line, ' ') >= maxLine {
				return nil, fmt.Errorf("a mount with a line of %d bytes before its options", len(line))
			}
			line = append(line[:maxLine], '\n')
		}
		table.Write(line)
		if errors.Is(err, io.EOF) {
			return mountinfo.GetMountsFromReader(&table, filter)
		}
		if err != nil {
			return nil, err
		}
	}
}
