//go:build linux && (amd64 || arm64)

package guest

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// openBeneath opens an existing file below dir for reading or writing.
func openBeneath(dir int, name string, flags int) (int, error) {
	return dirfd.Open(dir, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, dirfd.Beneath)
}

// writeBeneath writes to an existing file below dir.
func writeBeneath(dir int, name, text string) error {
	fd, err := openBeneath(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}
