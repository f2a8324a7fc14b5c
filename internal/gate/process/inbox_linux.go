//go:build linux && (amd64 || arm64)

package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/control"
)

// inbox reads from the keeper, with the files that it passes.
type inbox struct {
	conn  *os.File
	raw   syscall.RawConn
	files []*os.File
}

// passed is the maximum number of files in one message.
const passed = 2

func newInbox(conn *os.File) (*inbox, error) {
	raw, err := conn.SyscallConn()
	return &inbox{conn: conn, raw: raw}, err
}

// Read implements io.Reader. It appends the files that came with the bytes.
func (in *inbox) Read(p []byte) (n int, err error) {
	rights := make([]byte, unix.CmsgSpace(passed*4))
	var got, flags int
	var failed error
	err = in.raw.Read(func(fd uintptr) bool {
		n, got, flags, _, failed = unix.Recvmsg(int(fd), p, rights, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	switch err = errors.Join(err, failed); {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	case got == 0:
		return n, nil
	}
	msgs, err := unix.ParseSocketControlMessage(rights[:got])
	if err != nil || len(msgs) != 1 || flags&unix.MSG_CTRUNC != 0 {
		return 0, fmt.Errorf("received an invalid control message: %w", errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	for _, fd := range fds {
		in.files = append(in.files, os.NewFile(uintptr(fd), "from the keeper"))
	}
	return n, err
}

// take returns the line that came with a request, nil if none did.
func (in *inbox) take(s *control.Secrets) (line *os.File, err error) {
	want := 0
	if s != nil && s.HasLine {
		want = 1
	}
	if len(in.files) != want {
		return nil, fmt.Errorf("expected %d files with a request, got %d: %w", want, len(in.files), unix.EBADMSG)
	}
	if want == 1 {
		line, in.files = in.files[0], nil
	}
	return line, nil
}
