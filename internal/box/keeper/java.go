//go:build linux && (amd64 || arm64)

package keeper

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
	"github.com/coppice-dev/coppice/internal/javastore"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// javaStores are the stores of authorities that Java finds in a sandbox, as they are. left are
// those that nothing can be added to, as people read them.
type javaStores struct {
	found []plan.JavaStore
	left  []string
}

// trust has the inside trust an authority, if there is one, Java by its stores.
func trust(g *plan.Guest, e *plan.Enforced, ca []byte, stores func() (javaStores, error)) error {
	plan.Trust(g, e, ca)
	if len(ca) == 0 {
		return nil
	}
	java, err := stores()
	if err != nil {
		return err
	}
	return java.trust(g, e)
}

// trust gives init copies of the stores with g's authority added. One that cannot be added to is
// an item of e.
func (j javaStores) trust(g *plan.Guest, e *plan.Enforced) error {
	ca, _ := pem.Decode(g.CA)
	if ca == nil {
		return fault.New(fault.Internal, "the gate's certificate is none")
	}
	left := slices.Clone(j.left)
	for _, s := range j.found {
		all := javastore.Add(s.Content, ca.Bytes)
		switch {
		case all == nil:
			for _, name := range s.Paths {
				left = append(left, strconv.Quote(string(name)))
			}
		case !bytes.Equal(all, s.Content):
			g.Java = append(g.Java, plan.JavaStore{Paths: s.Paths, Content: all})
		}
	}
	if len(left) > 0 {
		e.Items = append(e.Items, untrusted("by "+strings.Join(left, " nor by ")+", which are no stores of authorities, or have another password"))
	}
	return nil
}

// untrusted is the item of a sandbox whose Java does not trust the gate, or not everywhere.
func untrusted(why string) plan.Item {
	return plan.Item{Name: "java", State: plan.Off, Detail: "Java does not trust the gate " + why + "; make one for it: keytool -importcert -cacerts -file " + plan.TrustCA}
}

// Bounds of what is looked for in a root that the sandbox has written.
const (
	mostJava  = 16                    // names of stores
	mostNames = 256                   // of a directory with JDKs
	mostBytes = limit.TrustStoreBytes // of all stores; as JSON, they fit into a message to init
)

// javaRoot is where stores are looked for. The keeper can read no more of it than init could,
// since the ids of its mounts are shifted for both.
type javaRoot struct {
	root    int // O_PATH
	regions []rootspec.Region
}

// stores returns the stores that there are, each once, however many names it has.
func (j javaRoot) stores() (all javaStores, err error) {
	var names []string
	for _, pattern := range plan.JavaStores {
		more, err := j.expand("/", strings.Split(pattern[1:], "/"))
		if err != nil {
			return all, err
		}
		for _, name := range more {
			if !slices.Contains(names, name) { // patterns overlap
				names = append(names, name)
			}
		}
	}
	if n := len(names) - mostJava; n > 0 {
		all.left = append(all.left, strconv.Itoa(n)+" more than "+strconv.Itoa(mostJava)+" stores")
		names = names[:mostJava]
	}
	size := 0
	for _, name := range names {
		content, err := j.read(name)
		if err != nil {
			return all, err
		}
		i := slices.IndexFunc(all.found, func(s plan.JavaStore) bool { return bytes.Equal(s.Content, content) })
		switch {
		case content == nil:
		case i >= 0:
			all.found[i].Paths = append(all.found[i].Paths, []byte(name))
		case size+len(content) > mostBytes:
			all.left = append(all.left, strconv.Quote(name))
		default:
			size += len(content)
			all.found = append(all.found, plan.JavaStore{Paths: [][]byte{[]byte(name)}, Content: content})
		}
	}
	return all, nil
}

// expand gives the names that a pattern below dir stands for. It looks no further than
// it must: whether there is such a file is seen when it is opened.
func (j javaRoot) expand(dir string, parts []string) (all []string, err error) {
	i := slices.Index(parts, "*")
	if i < 0 {
		return []string{filepath.Join(dir, filepath.Join(parts...))}, nil
	}
	dir = filepath.Join(dir, filepath.Join(parts[:i]...))
	f, err := j.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if f == nil {
		return nil, err // no JDKs are there
	}
	defer f.Close()
	names, err := f.Readdirnames(mostNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.New(fault.Unavailable, "list %q", dir).Because(err)
	}
	slices.Sort(names)
	for _, name := range names {
		found, err := j.expand(filepath.Join(dir, name), parts[i+1:])
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			f, err := j.open(name, unix.O_PATH)
			if err != nil {
				return nil, err
			}
			if f != nil {
				f.Close()
				all = append(all, name)
			}
		}
	}
	return all, nil
}

// read returns what is in the store at name, or nil if there is none, it is too large, or no
// file may be laid over it. It opens nothing but regular files, and no decoy.
func (j javaRoot) read(name string) ([]byte, error) {
	f, err := j.open(name, unix.O_PATH)
	if f == nil {
		return nil, err
	}
	defer f.Close()
	at, err := os.Readlink(program.Path(f)) // a path in the root, which is mounted nowhere
	if err != nil || !rootspec.MayCover(j.regions, name, at) {
		return nil, nil // if it has no path, it is deeper than any system has it
	}
	if ok, err := isStore(f); err != nil || !ok {
		return nil, err
	}
	// The root is the sandbox's, in which nothing runs yet, or the host's.
	r, err := j.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if r == nil {
		return nil, err
	}
	defer r.Close()
	if ok, err := isStore(r); err != nil || !ok {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, limit.TrustStoreBytes))
	return b, fault.Wrap(err, "read %q", name)
}

// isStore reports whether f is a regular file that is not too large.
func isStore(f *os.File) (bool, error) {
	st, err := f.Stat()
	if err != nil {
		return false, fault.New(fault.Unavailable, "look at %q", f.Name()).Because(err)
	}
	return st.Mode().IsRegular() && st.Size() <= limit.TrustStoreBytes, nil
}

// open opens an absolute name in the root, and follows links within it. It returns nil if there
// is nothing that can be opened: nothing is trusted by what cannot be read. An error is the host's.
func (j javaRoot) open(name string, flags int) (*os.File, error) {
	fd, err := rootspec.OpenInRoot(j.root, strings.TrimPrefix(name, "/"), flags)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil //nolint:nilerr // about the name, which the sandbox chose
	}
	return os.NewFile(uintptr(fd), name), nil
}
