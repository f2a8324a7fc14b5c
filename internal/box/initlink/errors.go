//go:build linux

package initlink

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Unknown is the answer of an init that does not know a message.
type Unknown struct {
	Kind Kind        `json:"kind"`
	Err  *wire.Error `json:"err"`
}

// Older returns the error of an init from an older build that does not support a request of a newer one.
func Older(format string, args ...any) *fault.Error {
	return fault.New(fault.Version, "the sandbox's init is of another version of coppice and "+format, args...).
		WithHint("restart the sandbox, which loses the memory of its processes: coppice stop NAME")
}

// WireError returns err as it travels in a message; nil for nil.
func WireError(err error) *wire.Error {
	if err == nil {
		return nil
	}
	err = fault.OfHost(err)
	return &wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
}
