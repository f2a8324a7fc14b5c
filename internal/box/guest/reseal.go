//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
)

// reseal makes a box that was resumed from a memory image another one than that it was
// taken of: what would be the same in both is drawn anew. What takes programs of the
// sandbox's own is done by commands, afterwards. Nothing is done after a step that failed.
func (d *daemon) reseal(m Message) error {
	var r Reseal
	if err := m.Decode(&r); err != nil {
		return err
	}
	d.launcher.env.Store(&r.Env)
	done := Resealed{}
	steps := []struct {
		name string
		do   func(Reseal) (string, error)
	}{
		{"certificates", d.retrust},
		{"hostname", rename},
		{"machine-id", newMachineID},
		{"random", stirRandom},
	}
	if len(r.Seed) == 0 { // the same sandbox goes on
		steps = steps[:1]
	}
	for _, s := range steps {
		detail, err := s.do(r)
		step := ResealStep{Name: s.name, Detail: detail}
		if err != nil {
			step.Err = err.Error()
			done.Err = wireError(fmt.Errorf("%s: %w", s.name, err))
		}
		done.Steps = append(done.Steps, step)
		if err != nil {
			break
		}
	}
	return d.link.Send(MsgResealed, done)
}

// retrust puts the certificate of another gate where that of the one before was.
func (d *daemon) retrust(r Reseal) (string, error) {
	before := d.guest.CA
	if len(before) == 0 || len(r.CA) == 0 {
		return "", nil
	}
	names, err := filepath.Glob(plan.TrustDir + "/*.pem")
	if err != nil {
		return "", err
	}
	for _, name := range names { // all of them are ours: /run belongs to root
		have, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		// In place, since programs see it at other names too.
		if err := os.WriteFile(name, []byte(strings.ReplaceAll(string(have), string(before), string(r.CA))), 0o644); err != nil {
			return "", err
		}
	}
	d.guest.CA = r.CA
	return fmt.Sprintf("%d files", len(names)), nil
}

// rename gives the box its name.
func rename(r Reseal) (string, error) {
	if r.Hostname == "" {
		return "", nil
	}
	return r.Hostname, unix.Sethostname([]byte(r.Hostname))
}

// newMachineID writes machine-id(5) anew where there is one.
func newMachineID(r Reseal) (string, error) {
	var done []string
	for _, name := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		f, err := openRegular(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		err = f.Truncate(0)
		if err == nil {
			_, err = f.WriteAt([]byte(hex.EncodeToString(r.Seed[:16])+"\n"), 0)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		done = append(done, name)
	}
	return strings.Join(done, " "), nil
}

// openRegular opens a file of the sandbox to be written, and nothing else than a file.
func openRegular(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.Join(err, unix.EINVAL)}
	}
	return f, nil
}

// stirRandom adds to what the kernel's generator has; gVisor takes it from the host's
// anyway, which differs in each copy.
func stirRandom(r Reseal) (string, error) {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = f.Write(r.Seed)
	return "", errors.Join(err, f.Close())
}
