package cli

import (
	"io"
	"strings"
)

// defaultDetach has Docker's detach keys.
const defaultDetach = "ctrl-p,ctrl-q"

// detachKeys parses keys as Docker writes them, as in "ctrl-p,ctrl-q" or "ctrl-a,d"; "" is none.
func detachKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(s, ",") {
		ctrl, isCtrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		switch {
		case isCtrl && len(ctrl) == 1 && ctrl[0] >= '@' && ctrl[0] <= '_' || isCtrl && len(ctrl) == 1 && ctrl[0] >= 'a' &&
			ctrl[0] <= 'z':
			keys = append(keys, ctrl[0]&0x1f)
		case len(word) == 1 && word[0] > ' ' && word[0] < 0x7f:
			keys = append(keys, word[0])
		default:
			return nil, &usageError{
				msg:  "--detach-keys: \"" + word + "\" is not a key",
				hint: "as in: ctrl-p,ctrl-q or ctrl-a,d",
			}
		}
	}
	return keys, nil
}

// detachable is the input of a supervised command. When the detach keys were typed, or the terminal is gone, it calls
// leave and blocks: EOF would close the command's stdin.
type detachable struct {
	in       io.Reader
	keys     []byte
	terminal bool
	leave    func()

	matched int    // number of typed keys that are not forwarded yet
	out     []byte // bytes to return next
	left    bool   // the keys were typed, or the terminal is gone
}

// Read returns the input without the detach keys. It returns what precedes them before it calls leave.
func (d *detachable) Read(p []byte) (int, error) {
	for len(d.out) == 0 {
		if d.left {
			d.leave()
			select {}
		}
		buf := make([]byte, len(p))
		n, err := d.in.Read(buf)
		d.left = d.filter(buf[:n]) || err != nil && d.terminal
		if err != nil && !d.left && len(d.out) == 0 {
			return 0, err
		}
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	return n, nil
}

// filter processes input, and reports whether the detach keys were typed.
func (d *detachable) filter(typed []byte) bool {
	if len(d.keys) == 0 {
		d.out = append(d.out, typed...)
		return false
	}
	for _, c := range typed {
		if c == d.keys[d.matched] {
			if d.matched++; d.matched == len(d.keys) {
				return true
			}
			continue
		}
		d.out = append(d.out, d.keys[:d.matched]...)
		d.matched = 0
		if c == d.keys[0] {
			d.matched = 1
			continue
		}
		d.out = append(d.out, c)
	}
	return false
}

// window is the terminal that shows a command's output. When the terminal is gone, it calls leave and drops the
// output: a failed Write would send the command SIGPIPE, as a closed pipe does, but the loss of a terminal must only
// hang up, or detach.
type window struct {
	out   io.Writer
	leave func()
}

func (w *window) Write(p []byte) (int, error) {
	if _, err := w.out.Write(p); err != nil {
		w.leave()
	}
	return len(p), nil
}
