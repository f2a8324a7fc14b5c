//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/thread"
)

// decide makes init's plan, and opens init's directory in /proc.
func (b *building) decide(context.Context) (err error) {
	k := b.k
	own := b.config.Tier == plan.TierGvisor // the sandbox has its own kernel
	if own {
		if err := k.inner.set(string(program.Init), b.config.Init, ownProgram); err != nil {
			return err
		}
		init, err := k.inner.file()
		if err != nil {
			return err
		}
		b.onReturn(func() { init.Close() })
		b.fds = slices.Insert(b.fds, 0, int(init.Fd()))
	}
	if b.guest, b.enforced, err = plan.Decide(b.config, b.facts); err != nil {
		return err
	}
	if !own {
		b.guest.Decoys = b.files.Decoys
	}
	if k.user, err = insideUser(b.config, b.guest.User, b.facts); err != nil {
		return err
	}
	if err := k.rememberInit("/proc/" + strconv.Itoa(k.init.Pid)); err != nil {
		return err
	}
	b.undos[undoProc] = func() {
		k.proc.Close()
		k.proc = nil
	}
	return nil
}

// sendSetUp sends init its plan, with the descriptors that init could not open itself, and closes the keeper's copies.
func (b *building) sendSetUp(context.Context) error {
	k := b.k
	if err := b.openInputs(); err != nil {
		return err
	}
	if b.guest.Lock != nil {
		thread.Reserve(ownThreads)
		if err := procs.ExpectEnd(b.config.RunDir, k.init.Pid, b.config.Caller.Root); err != nil {
			return err
		}
		b.undos[undoExpect] = k.recordEnd
	}
	if err := k.link.Send(initlink.MsgSetup, b.guest, b.fds...); err != nil {
		return fault.Wrap(err, "send init its plan")
	}
	// While init works: closing mounts is slow (it waits for RCU).
	k.exe.Close()
	k.exe = nil
	if b.root != "" {
		// Only init's copy remains, until init exits.
		if err := unix.Unmount(b.root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fault.Wrap(err, "release the root")
		}
		b.mounts.Close()
	}
	return nil
}

// openInputs opens the descriptors that init gets in addition to its program and the root.
func (b *building) openInputs() error {
	k := b.k
	shared, err := openShared(b.config.Shared, b.facts, k.init)
	if err != nil {
		return err
	}
	b.onReturn(shared.Close)
	b.fds = append(b.fds, shared...)
	if err := b.openClient(); err != nil {
		return err
	}
	if b.config.Tier == plan.TierGvisor {
		more, err := k.forConductor(&b.guest)
		if err != nil {
			return err
		}
		b.onReturn(more.Close)
		b.fds = append(b.fds, more...)
	} else if b.guest.Self {
		fd, err := openSelf(b.config.RunDir)
		if err != nil {
			return err
		}
		b.closeFD(fd)
		b.fds = append(b.fds, fd)
	}
	if b.config.Tier == plan.TierContainer {
		if err := b.openContainer(); err != nil {
			return err
		}
	}
	if b.guest.Tell {
		fd, err := k.watchRefused()
		if err != nil {
			return err
		}
		b.closeFD(fd)
		b.fds = append(b.fds, fd)
	}
	return nil
}

// openClient opens the program coppice, if the sandbox shows it. A sandbox without a kernel of its own does without it
// if the host has none to mount, which is then one of the enforced items.
func (b *building) openClient() error {
	if !b.guest.Client {
		return nil
	}
	client, err := b.clientFile()
	if err != nil {
		return err
	}
	if client == nil {
		b.guest.Client = false
		b.enforced.Items = append(b.enforced.Items, plan.Item{Name: plan.ClientItem, State: plan.Weak,
			Detail: plan.ClientAt + " is missing: the program of the daemon is not in a file that can be mounted"})
		return nil
	}
	b.onReturn(func() { client.Close() })
	b.fds = append(b.fds, int(client.Fd()))
	return nil
}

// clientFile opens the program coppice in a form that init can mount; nil if there is none.
func (b *building) clientFile() (*os.File, error) {
	k, own := b.k, program.Path(b.k.helpers.client)
	if b.config.Tier == plan.TierGvisor {
		if err := k.client.set(path.Base(plan.ClientAt), b.config.ImageClient, own); err != nil {
			return nil, err
		}
		return k.client.file()
	}
	mount, src, err := detached(own)
	if err != nil {
		return nil, err
	}
	return mount, src.Close()
}

// awaitReady waits until init has carried out its plan, adopts the running commands of a box that is resumed from
// memory, and sets k.enforced.
func (b *building) awaitReady(ctx context.Context) error {
	k := b.k
	var r initlink.Ready
	m, err := k.link.Recv()
	for left := mostAdopted; err == nil && m.Kind == initlink.MsgAdopt; m, err = k.link.Recv() {
		if left -= len(m.Payload); left < 0 {
			m.Close()
			return fault.New(fault.TooLarge, "the description of the resumed commands exceeds %d bytes", mostAdopted)
		}
		if err := k.adopt(m); err != nil {
			return err
		}
	}
	if err == nil && m.Kind != initlink.MsgReady {
		m.Close()
		return fault.New(fault.Unavailable, "unexpected message %q from init during its start", byte(m.Kind))
	}
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unavailable, "init exited during its start").
			WithHint("see its log: cat %s", filepath.Join(b.config.RunDir, protocol.LogName))
	}
	if err == nil {
		err = m.Decode(&r)
	}
	if err != nil {
		return fault.Wrap(err, "wait for init")
	}
	if r.Err != nil {
		return (*protocol.Failure)(r.Err).Fault()
	}
	b.spare()
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.config.Tier == plan.TierGvisor {
		k.decoys.settle()
	}
	k.enforced = b.enforcedBy(r)
	return nil
}

// mostAdopted bounds the messages of a resumed sandbox about its commands, in bytes.
const mostAdopted = 16 << 20

// enforcedBy returns what is enforced: the plan, except for items that init reports as weaker. In a sandbox that is
// resumed from memory the user's programs already run and may answer in place of init: they cannot make any item look
// stronger, and they have no influence on what the home records about the host.
func (b *building) enforcedBy(r initlink.Ready) plan.Enforced {
	e := b.enforced
	for _, w := range r.Weak {
		if w.State == plan.On {
			continue
		}
		e.Items = append(slices.DeleteFunc(slices.Clone(e.Items), func(i plan.Item) bool { return i.Name == w.Name }), w)
	}
	known := e
	if b.config.Image != "" {
		known = b.enforced
	}
	e = e.Bounded()
	e.Found = append(b.found, known.Findings(b.facts)...)
	return e
}

// openSelf opens the directory of the sandbox's own socket, which is mounted inside. Init cannot open it: it has no
// permissions on the host.
func openSelf(runDir string) (int, error) {
	dir := filepath.Join(runDir, plan.SelfDir)
	const how = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, how)
	if err != nil {
		return -1, fault.Wrap(err, "copy the mount of the sandbox's own socket")
	}
	const bare = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: bare}); err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "restrict the sandbox's own socket")
	}
	return fd, nil
}

// ownThreads is how many threads the keeper of a locked workspace starts before the first command, which can use up the
// tasks of a container in which the keeper is too.
const ownThreads = 16
