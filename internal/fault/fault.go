// Package fault defines the error type that users see: a kind to branch on, a message that says what went wrong and
// where, and a hint that ends with the command or setting that fixes it. Every package may import it; it imports no
// other package of Coppice.
package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kind classifies an error for programs. Kinds are part of the wire format: they are only ever added.
type Kind string

// The kinds. Package httpapi assigns each an HTTP status, and package cli an exit code ("coppice help exit-codes").
const (
	Internal    Kind = "internal"    // a bug of Coppice, or an unforeseen error
	Invalid     Kind = "invalid"     // the request itself is wrong
	NotFound    Kind = "not_found"   // unknown sandbox, snapshot, tag, file
	Ambiguous   Kind = "ambiguous"   // a reference that matches several snapshots
	Exists      Kind = "exists"      // the name is taken
	Conflict    Kind = "conflict"    // another operation holds what this one needs
	Unsupported Kind = "unsupported" // this host or build cannot do it; the hint says what could
	Denied      Kind = "denied"      // not allowed
	NoSpace     Kind = "no_space"    // disk or quota full; nothing acknowledged was lost
	ReadOnly    Kind = "read_only"   // the store cannot be written
	Corrupt     Kind = "corrupt"     // stored data fails its check; writes stop
	Version     Kind = "version"     // data of a format that this build does not know
	Unavailable Kind = "unavailable" // the daemon, keeper or network cannot be reached
	Cancelled   Kind = "cancelled"   // the caller disconnected
	Timeout     Kind = "timeout"     // a deadline passed
	TooLarge    Kind = "too_large"   // a bound of package limit is exceeded
)

// Error is an error with a kind, a message for users, a hint, and the cause.
type Error struct {
	Kind    Kind
	Message string // lower case, no period: what was being done, to what
	Hint    string // how to fix it; ends with a command if there is one
	Err     error  // the cause; may be nil
}

// Error joins message and cause.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Message
	case e.Message == "":
		return e.Err.Error()
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of kind k.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error that says what failed with err. Its kind is that of err, or of err's errno. Wrap returns nil if
// err is nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Kind: KindOf(err), Message: fmt.Sprintf(format, args...), Hint: HintOf(err), Err: err}
}

// WithHint sets the hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// Because sets the cause and returns e.
func (e *Error) Because(err error) *Error {
	e.Err = err
	return e
}

// KindOf returns the kind of err: that of the outermost *Error, else that of a context error or an errno, else
// Internal. KindOf(nil) is "".
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return Cancelled
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return NoSpace
	case errors.Is(err, syscall.EROFS):
		return ReadOnly
	case errors.Is(err, fs.ErrNotExist):
		return NotFound
	case errors.Is(err, fs.ErrExist):
		return Exists
	case errors.Is(err, fs.ErrPermission):
		return Denied
	}
	return Internal
}

// OfHost returns the error of a step whose system calls depend on the host alone. An errno without a kind is then not a
// bug of Coppice: the host does not support the call (Unsupported), or cannot do it now (Unavailable). Any other error
// is returned unchanged.
func OfHost(err error) error {
	var e syscall.Errno
	if KindOf(err) != Internal || !errors.As(err, &e) {
		return err
	}
	switch e {
	case syscall.ENOSYS, syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ENODEV, syscall.ENOTTY, syscall.ENOPROTOOPT,
		syscall.EPROTONOSUPPORT, syscall.EAFNOSUPPORT, syscall.ESOCKTNOSUPPORT, syscall.E2BIG:
		return New(Unsupported, "this host cannot do it").Because(err).
			WithHint("see what the host lacks: coppice system probe")
	}
	return New(Unavailable, "the host failed").Because(err).
		WithHint("free what it ran out of (descriptors: ulimit -n, memory, processes), or see what broke: dmesg; then try " +
			"again")
}

// HintOf returns the outermost hint of err, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// HintNoSpace adds a hint to err if it is the error of a full disk without a hint.
func HintNoSpace(err error, format string, args ...any) {
	var f *Error
	if Is(err, NoSpace) && HintOf(err) == "" && errors.As(err, &f) {
		f.Hint = fmt.Sprintf(format, args...)
	}
}
