//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/coppice-dev/coppice/internal/fault"
)

// image serves the files of a memory image to the kernel that resumes it. Without it, gVisor reads pages with 128
// threads before it has built anything that can run, which leaves little CPU time to build it. Here pages arrive in one
// read after the other, those that a process touches first (pkg/sentry/pgalloc, AsyncPagesFileLoad).
type image map[string]*os.File

// serve returns the socket on which the kernel requests pages; the caller closes it. The server exits when
// the kernel has all pages, or has exited.
func (i image) serve() (*os.File, error) {
	files, err := stateipc.NewAsyncFileServer(i)
	if err != nil {
		return nil, fault.Wrap(err, "serve the memory image")
	}
	server := urpc.NewServer()
	server.Register(files)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		files.Stop()
		return nil, fault.Wrap(err, "create a socket for the memory image")
	}
	theirs := os.NewFile(uintptr(pair[1]), "image")
	ours, err := unet.NewSocket(pair[0])
	if err != nil {
		unix.Close(pair[0])
		theirs.Close()
		files.Stop()
		return nil, fault.Wrap(err, "create a socket for the memory image")
	}
	go func() {
		_ = server.Handle(ours) // until the kernel closes its end
		server.Stop(0)
	}()
	return theirs, nil
}

// OpenRead opens a file of the image (stateipc.AsyncFileServerImpl).
func (i image) OpenRead(name string) (stateio.AsyncReader, error) {
	f, ok := i[name]
	if !ok {
		return nil, unix.ENOENT
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	const readBytes = 256 << 10
	if name == checkpointfiles.PagesFileName {
		return stateio.NewPagesFileFDReader(int32(fd), readBytes, 1), nil
	}
	return stateio.NewFDReader(int32(fd), readBytes, 1, 2), nil
}

// OpenWrite refuses (stateipc.AsyncFileServerImpl).
func (image) OpenWrite(string) (stateio.AsyncWriter, error) { return nil, unix.EROFS }

// Destroy closes the files (stateipc.AsyncFileServerImpl).
func (i image) Destroy() {
	for _, f := range i {
		f.Close()
	}
}
