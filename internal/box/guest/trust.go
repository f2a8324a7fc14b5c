//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mountTrust mounts files with the gate's authority over the existing trust stores, so that the authority is not
// recorded in the history.
func mountTrust(g plan.Guest) error {
	if len(g.CA) == 0 {
		return nil
	}
	if err := os.Mkdir(plan.TrustDir, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.TrustDir)
	}
	if err := os.WriteFile(plan.TrustCA, g.CA, 0o644); err != nil {
		return fault.Wrap(err, "write %s", plan.TrustCA)
	}
	proc, err := openProc()
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	root, err := openDir("/")
	if err != nil {
		return err
	}
	defer unix.Close(root)
	t := truster{rootspec.Files{Root: root, Proc: proc, Regions: g.Regions, Decoys: g.Decoys}}
	if err := t.mountBundles(g.CA); err != nil {
		return err
	}
	if err := t.mountKnownHosts(g.CA); err != nil {
		return err
	}
	return t.mountJava(g.Java)
}

// truster mounts files over the trust stores of a root.
type truster struct{ files rootspec.Files }

// mountBundles mounts PEM bundles over those of the system, and writes one for programs that use another.
func (t truster) mountBundles(ca []byte) error {
	var first []byte
	for i, name := range plan.TrustStores {
		have, err := t.lay(name, filepath.Join(plan.TrustDir, strconv.Itoa(i)+".pem"),
			func(have []byte) []byte { return withPEM(have, ca) })
		if err != nil {
			return err
		}
		if first == nil {
			first = have
		}
	}
	if first == nil {
		first = ca
	}
	if err := os.WriteFile(plan.TrustBundle, first, 0o644); err != nil {
		return fault.Wrap(err, "write %s", plan.TrustBundle)
	}
	return nil
}

// mountJava mounts the Java stores that the keeper has made over the sandbox's.
func (t truster) mountJava(stores []plan.JavaStore) error {
	for i, s := range stores {
		for n, name := range s.Paths {
			if _, err := t.lay(string(name), javaFile(i, n), func([]byte) []byte { return s.Content }); err != nil {
				return err
			}
		}
	}
	return nil
}

// javaFile returns the path of init's file for the n-th name of the i-th Java store.
func javaFile(i, n int) string {
	return filepath.Join(plan.TrustDir, strconv.Itoa(i)+"."+strconv.Itoa(n)+".jks")
}

// openInside opens an absolute name in the sandbox's root with O_PATH, and follows links within the root. An error of
// kind fault.Unavailable concerns the host; any other concerns the name.
func openInside(name string, flags int) (*os.File, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "open the root").Because(err)
	}
	defer unix.Close(root)
	fd, err := rootspec.OpenInRoot(root, strings.TrimPrefix(name, "/"), flags|unix.O_PATH)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// withPEM returns the certificates of a bundle and then an authority, which it adds at most once. It copies nothing
// else of have, even if the authority is already there: a sandbox may link its bundle to a file that it can write but
// not read, and every user can read the copy.
func withPEM(have, ca []byte) []byte {
	own, _ := pem.Decode(ca)
	var all []byte
	for block, rest := pem.Decode(have); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" && (own == nil || !bytes.Equal(block.Bytes, own.Bytes)) {
			all = append(all, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
	return append(all, ca...)
}

// lay writes the result of with for the content of a store to ours, mounts that over the store, and returns it. It
// mounts nothing if with does not change the content. It returns nil if the file does not exist, if with returns nil
// because the file is not a store, or if the sandbox's links lead to where the policy forbids changes.
func (t truster) lay(name, ours string, with func([]byte) []byte) ([]byte, error) {
	f, err := t.files.Find(name, limit.TrustStoreBytes)
	if f == nil {
		return nil, err // programs cannot trust a store that cannot be read
	}
	defer f.Close()
	if !rootspec.MayCover(t.files.Regions, name, f.At) {
		return nil, nil
	}
	have, err := f.ReadAll()
	if err != nil || have == nil {
		return nil, err
	}
	all := with(have)
	if all == nil || bytes.Equal(all, have) { // another name of a store that is already covered
		return all, nil
	}
	if err := os.WriteFile(ours, all, 0o644); err != nil {
		return nil, fault.Wrap(err, "write %s", ours)
	}
	readOnly := !rootspec.RegionOf(t.files.Regions, f.At).Open
	return all, fault.Wrap(layOver(ours, f.File, readOnly), "bind %q", name)
}
