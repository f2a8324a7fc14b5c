package meta

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve reserves disk space for the log, beyond its end, so that sandboxes can be removed while other files fill
// the disk. It does nothing if the file system does not support that or has no space.
func (d *DB) reserve() error {
	f, err := os.OpenFile(d.path+"-wal", os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reserved)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		errors.Is(err, unix.ENOSYS) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
