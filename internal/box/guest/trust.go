//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// maxStore is the largest file of authorities that is added to; Mozilla's have 220 KiB.
const maxStore = 8 << 20

// mountTrust lays files with the gate's authority over the stores of authorities that
// exist, so that nothing of it gets into the history.
func mountTrust(g plan.Guest, _ int) error {
	if len(g.CA) == 0 {
		return nil
	}
	if err := os.Mkdir(plan.TrustDir, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.TrustDir)
	}
	if err := os.WriteFile(plan.TrustCA, g.CA, 0o644); err != nil {
		return fault.Wrap(err, "write %s", plan.TrustCA)
	}
	var first []byte
	for i, name := range plan.TrustStores {
		have, err := trustStore(name, filepath.Join(plan.TrustDir, strconv.Itoa(i)+".pem"), func(have []byte) []byte { return withPEM(have, g.CA) })
		if err != nil {
			return err
		}
		if first == nil {
			first = have
		}
	}
	if first == nil {
		first = g.CA
	}
	if err := os.WriteFile(plan.TrustBundle, first, 0o644); err != nil {
		return fault.Wrap(err, "write %s", plan.TrustBundle)
	}
	block, _ := pem.Decode(g.CA)
	if block == nil {
		return fault.New(fault.Internal, "the gate's certificate is none")
	}
	for i, name := range plan.JavaStores {
		if _, err := trustStore(name, filepath.Join(plan.TrustDir, strconv.Itoa(i)+".jks"), func(have []byte) []byte { return withJKS(have, block.Bytes) }); err != nil {
			return err
		}
	}
	return nil
}

// withPEM adds an authority to a bundle.
func withPEM(have, ca []byte) []byte {
	if bytes.Contains(have, ca) {
		return have
	}
	if len(have) > 0 && have[len(have)-1] != '\n' {
		have = append(have, '\n')
	}
	return append(have, ca...)
}

// trustStore lays a file at ours over a store, with what with makes of it, and gives what
// is in it then; nil where there is no such store, or something that is none, of which
// with may make nil. It is not laid over one that stays as it is. A link may lead to it, but not out
// of the root: the host's is still reachable through our descriptors.
func trustStore(name, ours string, with func([]byte) []byte) ([]byte, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "open the root")
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, nil // nothing is trusted by what cannot be read
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxStore {
		return nil, nil
	}
	have, err := io.ReadAll(io.LimitReader(f, maxStore))
	if err != nil {
		return nil, fault.Wrap(err, "read %s", name)
	}
	all := with(have)
	if all == nil || len(all) == len(have) { // another name of one that was seen to
		return all, nil
	}
	if err := os.WriteFile(ours, all, 0o644); err != nil {
		return nil, fault.Wrap(err, "write %s", ours)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, ours, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fault.Wrap(err, "open %s", ours)
	}
	defer unix.Close(tree)
	err = unix.MoveMount(tree, "", int(f.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) { // it was removed meanwhile
		return nil, nil
	}
	return all, fault.Wrap(err, "bind %s", name)
}
