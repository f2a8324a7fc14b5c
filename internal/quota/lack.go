package quota

import (
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Facts describes a file system on which limits are not enforced.
type Facts struct {
	Dir    string // a directory on it
	FS     string // "ext4", "xfs", "btrfs", …
	Device string // device and mount point; empty if not known
	Mount  string
	NoCall bool  // the kernel has no quotactl_fd(2)
	Counts bool  // project quotas are counted
	Holds  bool  // project quotas are enforced
	Err    error // why the test failed, if everything else is present
}

// elsewhere is the hint for hosts where quotas are not possible.
const elsewhere = "put COPPICE_HOME on a file system of the size that you want (a tmpfs with size=, a loop mount), " +
	"and drop disk= from --limit"

// NotRoot returns the error for the daemon of an unprivileged user, which cannot set quotas.
func NotRoot() error {
	return fault.New(fault.Unsupported, "a disk limit requires a daemon that runs as root, which alone can set quotas").
		WithHint(elsewhere)
}

// NoDriver returns the error for a driver that does not support limits.
func NoDriver(driver string) error {
	return fault.New(fault.Unsupported, "driver %s cannot enforce a disk limit", driver).
		WithHint("use --driver auto, or %s", elsewhere)
}

// Lack returns an error that names what is missing for project quotas, with a hint.
func Lack(f Facts) error {
	lack := func(format string, args ...any) *fault.Error {
		return fault.New(fault.Unsupported, "cannot enforce a disk limit: "+format, args...)
	}
	device, mount := f.Device, f.Mount
	if device == "" {
		device, mount = "DEVICE", "DIR"
	}
	word := func(s string) string { return visible.Word(visible.Clean(s)) }
	device, mount, dir := word(device), word(mount), word(f.Dir)
	switch {
	case f.NoCall:
		return lack("this kernel has no quotactl_fd").WithHint("boot Linux 5.14 or later with CONFIG_QUOTA; or %s", elsewhere)
	case f.FS == "btrfs":
		return lack("%s is on btrfs, where only driver btrfs can, and not on the host itself", f.Dir).
			WithHint("btrfs quota enable %s; then: coppice create --driver btrfs --from host-copy", dir)
	case f.FS != "ext4" && f.FS != "xfs" && !f.Counts:
		return lack("%s is on %s, which has no project quotas", f.Dir, f.FS).
			WithHint("put COPPICE_HOME on ext4 or xfs mounted with prjquota, or on btrfs with quotas; or %s", elsewhere)
	case !f.Counts && f.FS == "ext4":
		return lack("the ext4 at %s lacks project quotas", mount).
			WithHint("unmount it, then: tune2fs -O project,quota -Q prjquota %s && mount -o prjquota %s %s", device,
				device, mount)
	case !f.Counts || !f.Holds && f.FS == "xfs":
		return lack("the %s at %s was mounted without prjquota", f.FS, mount).
			WithHint("umount %s && mount -o prjquota %s %s (the root file system: rootflags=prjquota on the kernel's command "+
				"line)", mount, device, mount)
	case !f.Holds:
		return lack("the %s at %s counts projects but does not enforce limits", f.FS, mount).
			WithHint("quotaon -P %s (for good: the mount option prjquota)", mount)
	}
	return lack("a test in %s failed", f.Dir).Because(f.Err).WithHint(elsewhere)
}
