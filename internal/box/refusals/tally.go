//go:build linux && (amd64 || arm64)

package refusals

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Tally is a counter in memory that keeper and init share. If init is killed before it has reported all refusals, the
// keeper learns how many are missing.
type Tally struct{ n *atomic.Uint64 }

// NewTally returns a new Tally, and the descriptor with which MapTally shares it, which the caller closes. The memory
// stays mapped until the process exits.
func NewTally() (t *Tally, fd int, err error) {
	fd, err = unix.MemfdCreate("tally", unix.MFD_CLOEXEC)
	if err == nil {
		if err = unix.Ftruncate(fd, tallySize); err == nil {
			t, err = MapTally(fd)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	return t, fd, fault.Wrap(err, "share memory with init")
}

// MapTally returns the Tally of another process. It does not close fd.
func MapTally(fd int) (*Tally, error) {
	b, err := unix.Mmap(fd, 0, tallySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a tally: %w", err)
	}
	return &Tally{n: (*atomic.Uint64)(unsafe.Pointer(&b[0]))}, nil
}

// Add counts one.
func (t *Tally) Add() { t.n.Add(1) }

// Count returns the count.
func (t *Tally) Count() uint64 { return t.n.Load() }

// tallySize is the size of the shared memory, in bytes.
const tallySize = 8
