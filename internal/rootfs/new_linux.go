package rootfs

import (
	"path/filepath"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
)

// New returns the driver with the given name. Deps.Home must exist. New does not check whether the host and the file
// system of the store support the driver; Present does.
func New(name string, d Deps) (Driver, error) {
	home, err := filepath.Abs(d.Home)
	if err == nil {
		home, err = filepath.EvalSymlinks(home)
	}
	if err != nil {
		return nil, fault.Wrap(err, "find the store %s", d.Home)
	}
	if !utf8.ValidString(home) {
		return nil, fault.New(fault.Invalid, "the path of the store is not UTF-8: %q", home).
			WithHint("set COPPICE_HOME to another directory")
	}
	d.Home = home
	if d.Host == nil {
		store, root := d.Home, d.Root
		d.Host = func() (Host, error) { return ThisHost(store, root) }
	}
	switch name {
	case "overlay":
		return &overlay{deps: d}, nil
	case "copy":
		return &plain{deps: d}, nil
	case "btrfs":
		return &plain{deps: d, vol: newVolumes(home)}, nil
	}
	return nil, fault.New(fault.Invalid, "unknown driver %q", name).WithHint("use auto, overlay, copy or btrfs")
}
