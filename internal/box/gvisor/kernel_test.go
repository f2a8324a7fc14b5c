//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestKernelErrors_AreClassified checks that a kernel error about a full disk is reported as
// one, without a stack trace.
func TestKernelErrors_AreClassified(t *testing.T) {
	t.Parallel()
	const stacks = ":\ngoroutine 122 [running]:\ngvisor.dev/gvisor/pkg/state.safely.func1()\n\t/state.go:309 +0x19e\n"
	for _, c := range []struct {
		err  error
		text string
		kind fault.Kind
	}{
		{nil, "", ""},
		{urpc.RemoteError{Message: "error serializing object: " + syscall.ENOSPC.Error() + stacks}, "no space left on device",
			fault.NoSpace},
		{urpc.RemoteError{Message: "write pages: " + syscall.EDQUOT.Error()}, "disk quota exceeded", fault.NoSpace},
		{urpc.RemoteError{Message: "object of no type" + stacks}, "object of no type", fault.Internal},
		{errors.New("closed"), "closed", fault.Internal},
	} {
		got, text := asFault(c.err), ""
		if got != nil {
			text = got.Error()
		}
		if text != c.text || fault.KindOf(got) != c.kind {
			t.Errorf("%v: %q, %q", c.err, text, fault.KindOf(got))
		}
	}
}

// TestFailed_IsNotInternal checks that a failure of the kernel while a sandbox starts is not
// reported as a bug of Coppice, and has a hint.
func TestFailed_IsNotInternal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind fault.Kind
	}{
		{urpc.RemoteError{Message: "starting sandbox: failed to setupFS: input/output error"}, fault.Unavailable},
		{io.EOF, fault.Unavailable},
		{syscall.EAGAIN, fault.Unavailable},
		{syscall.ENOSPC, fault.NoSpace},
		{fault.New(fault.Denied, "no"), fault.Denied},
	} {
		err := failed(c.err, "start")
		if !fault.Is(err, c.kind) || !errors.Is(err, c.err) || c.kind == fault.Unavailable && fault.HintOf(err) == "" {
			t.Errorf("%v: %v is %s, hint %q", c.err, err, fault.KindOf(err), fault.HintOf(err))
		}
	}
	if err := failed(nil, "start"); err != nil {
		t.Error(err)
	}
}
