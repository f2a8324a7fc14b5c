//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// mountTrust lays files with the gate's authority over the stores of authorities that
// exist, so that nothing of it gets into the history. It tells of those that cannot have
// it.
func mountTrust(g plan.Guest) ([]plan.Item, error) {
	if len(g.CA) == 0 {
		return nil, nil
	}
	if err := os.Mkdir(plan.TrustDir, 0o755); err != nil {
		return nil, fault.Wrap(err, "make %s", plan.TrustDir)
	}
	if err := os.WriteFile(plan.TrustCA, g.CA, 0o644); err != nil {
		return nil, fault.Wrap(err, "write %s", plan.TrustCA)
	}
	proc, err := openProc()
	if err != nil {
		return nil, err
	}
	defer unix.Close(proc)
	t := truster{proc: proc, regions: g.Regions}
	if err := t.mountBundles(g.CA); err != nil {
		return nil, err
	}
	left, err := t.mountJava(g.CA)
	if err != nil || len(left) == 0 {
		return nil, err
	}
	return []plan.Item{{Name: "java", State: plan.Off, Detail: "Java does not trust the gate by " + strings.Join(left, " nor by ") +
		", which are no stores of authorities, or have another password; make one for it: keytool -importcert -cacerts -file " + plan.TrustCA}}, nil
}

// truster lays files over the stores of a root.
type truster struct {
	proc    int // O_PATH
	regions []rootspec.Region
}

// mountBundles lays bundles of PEM over those of the system, and writes one for all others.
func (t truster) mountBundles(ca []byte) error {
	var first []byte
	for i, name := range plan.TrustStores {
		have, err := t.lay(name, filepath.Join(plan.TrustDir, strconv.Itoa(i)+".pem"), func(have []byte) []byte { return withPEM(have, ca) })
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

// Bounds of what is looked for in a root that the sandbox has written.
const (
	mostJava  = 16  // stores
	mostNames = 256 // of a directory with JDKs
)

// mountJava lays stores of Java's over those that exist. left are those that it cannot
// add to, as people read them.
func (t truster) mountJava(ca []byte) (left []string, err error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil, fault.New(fault.Internal, "the gate's certificate is none")
	}
	var names []string
	for _, pattern := range plan.JavaStores {
		found, err := expand("/", strings.Split(pattern[1:], "/"))
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) > mostJava {
		left = append(left, strconv.Itoa(len(names)-mostJava)+" more than "+strconv.Itoa(mostJava)+" stores")
		names = names[:mostJava]
	}
	for i, name := range names {
		_, err := t.lay(name, filepath.Join(plan.TrustDir, strconv.Itoa(i)+".jks"), func(have []byte) []byte {
			all := withJKS(have, block.Bytes)
			if all == nil {
				all = withPKCS12(have, block.Bytes)
			}
			if all == nil {
				left = append(left, strconv.Quote(name))
			}
			return all
		})
		if err != nil {
			return nil, err
		}
	}
	return left, nil
}

// expand gives the names that a pattern below dir stands for. It looks no further than
// it must: whether there is such a file is seen when it is opened.
func expand(dir string, parts []string) (all []string, err error) {
	i := slices.Index(parts, "*")
	if i < 0 {
		return []string{filepath.Join(dir, filepath.Join(parts...))}, nil
	}
	dir = filepath.Join(dir, filepath.Join(parts[:i]...))
	f, err := openInside(dir, unix.O_DIRECTORY)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil // no JDKs are there
	}
	defer f.Close()
	names, err := f.Readdirnames(mostNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.New(fault.Unavailable, "list %q", dir).Because(err)
	}
	slices.Sort(names)
	for _, name := range names {
		found, err := expand(filepath.Join(dir, name), parts[i+1:])
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			f, err := openInside(name, unix.O_PATH)
			if fault.Is(err, fault.Unavailable) {
				return nil, err
			}
			if err == nil {
				f.Close()
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// openInside opens an absolute name in the sandbox's root, and follows links within it. It
// does not block on a FIFO; the caller checks the file's type. An error of kind
// fault.Unavailable is about the host; any other is about the name.
func openInside(name string, flags int) (*os.File, error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "open the root").Because(err)
	}
	defer unix.Close(root)
	if flags&unix.O_PATH == 0 { // openat2(2) refuses these flags with O_PATH
		flags |= unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd, err := rootspec.OpenInRoot(root, strings.TrimPrefix(name, "/"), flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// withPEM returns the certificates of a bundle, followed by an authority, once. It copies
// nothing else of have, even if the authority is already there: a sandbox may link
// its bundle to a file that it can write but not read, and every user can read the copy.
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

// lay writes what with makes of a store to ours, mounts that over the store, and returns the
// new content. A store that with does not change is not covered. lay returns nil if there is
// no store, if with returns nil because it is not one, or if the sandbox's links lead to
// where the policy does not let it change anything.
func (t truster) lay(name, ours string, with func([]byte) []byte) ([]byte, error) {
	f, err := openInside(name, 0)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil // nothing is trusted by what cannot be read
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fault.New(fault.Unavailable, "look at %q", name).Because(err)
	}
	if !st.Mode().IsRegular() || st.Size() > limit.TrustStoreBytes {
		return nil, nil
	}
	ok, readOnly, err := mayCover(t.proc, t.regions, name, f)
	if err != nil || !ok {
		return nil, err
	}
	have, err := io.ReadAll(io.LimitReader(f, limit.TrustStoreBytes))
	if err != nil {
		return nil, fault.Wrap(err, "read %q", name)
	}
	all := with(have)
	if all == nil || bytes.Equal(all, have) { // another name of a store that is done
		return all, nil
	}
	if err := os.WriteFile(ours, all, 0o644); err != nil {
		return nil, fault.Wrap(err, "write %s", ours)
	}
	return all, fault.Wrap(layOver(ours, f, readOnly), "bind %q", name)
}
