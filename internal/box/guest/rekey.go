//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// rekey gives a box that was resumed from a memory image its own identity: it replaces everything
// random that would be equal in both boxes. Steps that need the sandbox's own programs are done by commands,
// afterwards. It stops at the first step that fails.
func (d *daemon) rekey(m initlink.Message) error {
	var r initlink.Rekey
	if err := m.Obey(&r); err != nil {
		return d.link.Send(initlink.MsgRekeyed, initlink.Rekeyed{Err: initlink.WireError(err)})
	}
	if d.held == nil {
		err := fault.New(fault.Unsupported, "cannot resume the memory of a sandbox of tier %s", d.guest.Tier)
		return d.link.Send(initlink.MsgRekeyed, initlink.Rekeyed{Err: initlink.WireError(err)})
	}
	d.launcher.env.Store(&r.Env)
	done := initlink.Rekeyed{Held: true}
	steps := []struct {
		name string
		do   func(initlink.Rekey) (string, error)
	}{
		{"certificates", d.retrust},
		{"hostname", rename},
		{"identity", d.newIdentity},
		{"random", d.stirRandom},
	}
	if len(r.Seed) == 0 { // the same sandbox is resumed
		steps = steps[:1]
	}
	for _, s := range steps {
		detail, err := s.do(r)
		step := initlink.RekeyStep{Name: s.name, Detail: detail}
		if err != nil {
			step.Err = err.Error()
			done.Err = initlink.WireError(fmt.Errorf("%s: %w", s.name, err))
		}
		done.Steps = append(done.Steps, step)
		if err != nil {
			break
		}
	}
	return d.link.Send(initlink.MsgRekeyed, done)
}

// retrust replaces the certificate of the previous gate by that of the new one.
func (d *daemon) retrust(r initlink.Rekey) (string, error) {
	before := d.guest.CA
	if len(before) == 0 || len(r.CA) == 0 {
		return "", nil
	}
	if err := d.held.replaceTrust(func(have []byte) []byte { return replacedTrust(have, before, r.CA) }); err != nil {
		return "", err
	}
	if err := d.held.replaceJava(r.Java); err != nil {
		return "", err
	}
	d.guest.CA = r.CA
	return fmt.Sprintf("%d files", len(d.held.trust)), nil
}

// replacedTrust returns a file of certificates or known hosts with the authority now in place of before.
func replacedTrust(have, before, now []byte) []byte {
	have = bytes.ReplaceAll(have, before, now)
	if line := plan.KnownHosts(before); line != nil {
		have = bytes.ReplaceAll(have, line, plan.KnownHosts(now))
	}
	return have
}

// rename sets the host name of the box.
func rename(r initlink.Rekey) (string, error) {
	if r.Hostname == "" {
		return "", nil
	}
	return r.Hostname, unix.Sethostname([]byte(r.Hostname))
}

// identities are the files that distinguish one machine, or one boot of it, from others, and how 16 random bytes are
// written to each: machine-id(5), random(4).
var identities = []struct {
	name string
	text func([]byte) string
}{
	{"/etc/machine-id", machineID},
	{"/var/lib/dbus/machine-id", machineID},
	{"/proc/sys/kernel/random/boot_id", func(b []byte) string { return uuid(b) + "\n" }},
}

// newIdentity mounts new identity files over the existing ones, so that they are not recorded in the history, and
// read-only ones are replaced too.
func (d *daemon) newIdentity(r initlink.Rekey) (string, error) {
	var done []string
	for i, id := range identities {
		text := []byte(id.text(r.Seed[i/2*16:][:16]))
		laid, err := d.held.lay(i, id.name, text)
		if err != nil {
			return "", err
		}
		if laid {
			done = append(done, filepath.Base(id.name))
		}
	}
	return strings.Join(done, " "), nil
}

// stirRandom adds entropy to the kernel's generator. GVisor reads the host's generator in any case, so the output
// differs in each copy.
func (d *daemon) stirRandom(r initlink.Rekey) (string, error) {
	_, err := d.held.random.Write(r.Seed)
	return "", err
}
