//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
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
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// javaStores are the trust stores that Java finds in a sandbox, unchanged.
type javaStores struct {
	found []plan.JavaStore
	left  []string // names of stores to which nothing can be added, quoted
	more  string   // why there may be further stores; "" if all were found
}

// trust makes the inside trust an authority, if there is one: Java through copies of its stores.
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

// trust gives init copies of the stores with g's authority added. A store to which it cannot be added becomes an item
// of e.
func (j javaStores) trust(g *plan.Guest, e *plan.Enforced) error {
	ca, _ := pem.Decode(g.CA)
	if ca == nil {
		return fault.New(fault.Internal, "invalid certificate of the gate")
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
	var why []string
	if len(left) > 0 {
		why = append(why,
			"by "+strings.Join(left, " nor by ")+", which are not trust stores or have another password")
	}
	if j.more != "" {
		why = append(why, "by further stores, "+j.more)
	}
	if len(why) > 0 {
		e.Items = append(e.Items, untrusted(strings.Join(why, "; nor ")))
	}
	return nil
}

// untrusted is the item for a sandbox whose Java does not trust the gate, or does not trust it everywhere.
func untrusted(why string) plan.Item {
	return plan.Item{Name: "java", State: plan.Off,
		Detail: "Java does not trust the gate " + why + "; import its certificate: keytool -importcert -cacerts -file " +
			plan.TrustCA}
}

// Bounds of the search in a root that the sandbox has written.
const (
	mostJava  = limit.JavaStores      // stores, by their names
	mostNames = limit.JavaNames       // names that are opened to find them
	mostBytes = limit.TrustStoreBytes // bytes of all stores; as JSON, they fit into a message to init
)

// javaSearch searches for stores in a root. The keeper can read no more of it than init could, since the ids of its
// mounts are shifted for both. The search ends when all.more is set.
type javaSearch struct {
	files  rootspec.Files
	all    javaStores
	seen   map[string]bool // names that were checked for a store; patterns overlap
	opened int             // number of opened names
	stores int             // number of names of stores
	size   int             // size of all.found
}

// findJava returns the existing stores, each once, however many names it has.
func findJava(ctx context.Context, files rootspec.Files) (javaStores, error) {
	s := javaSearch{files: files, seen: map[string]bool{}}
	for _, pattern := range plan.JavaStores {
		if err := s.expand(ctx, "/", strings.Split(pattern[1:], "/")); err != nil {
			return s.all, err
		}
	}
	return s.all, nil
}

// step counts a name that is about to be opened. It returns false if the search has ended.
func (s *javaSearch) step(ctx context.Context) (bool, error) {
	if err := ctx.Err(); err != nil || s.all.more != "" {
		return false, err
	}
	if s.opened == mostNames {
		s.all.more = fmt.Sprintf("if any, since the search stops after %d names", mostNames)
		return false, nil
	}
	s.opened++
	return true, nil
}

// expand visits the names that match a pattern below dir.
func (s *javaSearch) expand(ctx context.Context, dir string, parts []string) error {
	i := slices.Index(parts, "*")
	if i < 0 {
		return s.take(ctx, filepath.Join(dir, filepath.Join(parts...)))
	}
	dir = filepath.Join(dir, filepath.Join(parts[:i]...))
	names, err := s.list(ctx, dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.expand(ctx, filepath.Join(dir, name), parts[i+1:]); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names in a directory, sorted, and at most one more than may be opened. An error concerns the host.
func (s *javaSearch) list(ctx context.Context, dir string) ([]string, error) {
	if ok, err := s.step(ctx); err != nil || !ok {
		return nil, err
	}
	fd, err := rootspec.OpenInRoot(s.files.Root, strings.TrimPrefix(dir, "/"), unix.O_RDONLY|unix.O_DIRECTORY)
	if fault.Is(err, fault.Unavailable) {
		return nil, err
	}
	if err != nil {
		return nil, nil // no such directory, or it cannot be opened
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(mostNames - s.opened + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.New(fault.Unavailable, "list %q", dir).Because(err)
	}
	slices.Sort(names)
	return names, nil
}

// take adds the store at name, if there is one over which a file may be mounted.
func (s *javaSearch) take(ctx context.Context, name string) error {
	if s.seen[name] {
		return nil
	}
	s.seen[name] = true
	if ok, err := s.step(ctx); err != nil || !ok {
		return err
	}
	f, err := s.files.Find(name, limit.TrustStoreBytes)
	if f == nil {
		return err
	}
	defer f.Close()
	if !rootspec.MayCover(s.files.Regions, name, f.At) {
		return nil
	}
	if s.stores == mostJava {
		s.all.more = fmt.Sprintf("since the limit is %d", mostJava)
		return nil
	}
	s.stores++
	content, err := f.ReadAll()
	if content == nil {
		return err
	}
	i := slices.IndexFunc(s.all.found, func(o plan.JavaStore) bool { return bytes.Equal(o.Content, content) })
	switch {
	case i >= 0:
		s.all.found[i].Paths = append(s.all.found[i].Paths, []byte(name))
	case s.size+len(content) > mostBytes:
		s.all.left = append(s.all.left, strconv.Quote(name))
	default:
		s.size += len(content)
		s.all.found = append(s.all.found, plan.JavaStore{Paths: [][]byte{[]byte(name)}, Content: content})
	}
	return nil
}
