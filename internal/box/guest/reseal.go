//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
)

// reseal makes a box that was resumed from a memory image another one than that it was
// taken of: what would be the same in both is drawn anew. What takes programs of the
// sandbox's own is done by commands, afterwards. Nothing is done after a step that failed.
func (d *daemon) reseal(m Message) error {
	var r Reseal
	if err := m.Obey(&r); err != nil {
		return d.link.Send(MsgResealed, Resealed{Err: wireError(err)})
	}
	d.launcher.env.Store(&r.Env)
	done := Resealed{}
	steps := []struct {
		name string
		do   func(Reseal) (string, error)
	}{
		{"certificates", d.retrust},
		{"hostname", rename},
		{"identity", newIdentity},
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

// identities are the files that tell one machine, and one boot of it, from others, and how
// each is written of 16 random bytes: machine-id(5), random(4).
var identities = []struct {
	name string
	text func([]byte) string
}{
	{"/etc/machine-id", func(b []byte) string { return hex.EncodeToString(b) + "\n" }},
	{"/var/lib/dbus/machine-id", func(b []byte) string { return hex.EncodeToString(b) + "\n" }},
	{"/proc/sys/kernel/random/boot_id", func(b []byte) string { return uuid(b) + "\n" }},
}

// uuid writes 16 random bytes as RFC 9562 has it, version 4.
func uuid(b []byte) string {
	u := [16]byte(b)
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// identityDir has what is laid over the files of identities, so that nothing of it gets
// into the history, and whoever may not write them has it too.
const identityDir = "/run/coppice-identity"

// newIdentity lays new ones over those of identities that are there.
func newIdentity(r Reseal) (string, error) {
	if err := os.Mkdir(identityDir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	var done []string
	for i, id := range identities {
		if st, err := os.Stat(id.name); err != nil || !st.Mode().IsRegular() {
			continue // there is none
		}
		ours := filepath.Join(identityDir, strconv.Itoa(i))
		_, err := os.Lstat(ours)
		laid := err == nil // of a copy that this one is a copy of
		if err := os.WriteFile(ours, []byte(id.text(r.Seed[i/2*16:][:16])), 0o444); err != nil {
			return "", err
		}
		if !laid {
			if err := unix.Mount(ours, id.name, "", unix.MS_BIND, ""); err != nil {
				return "", fmt.Errorf("bind %s: %w", id.name, err)
			}
		}
		done = append(done, filepath.Base(id.name))
	}
	return strings.Join(done, " "), nil
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
