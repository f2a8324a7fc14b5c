package layer

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Verify hashes a finalized layer again and compares everything with its manifest. It returns Corrupt with the path
// of the first difference, and NotFound for a layer that is not finalized.
func (s *Store) Verify(ctx context.Context, id timeline.LayerID) error {
	want, _, err := s.Manifest(ctx, id)
	if err != nil {
		return err
	}
	got, err := s.describe(ctx, id, nil, asIn(want))
	if err != nil {
		return fault.Wrap(err, "verify layer %s", id)
	}
	if err := compare(want, got); err != nil {
		return fault.Wrap(err, "verify layer %s", id)
	}
	return nil
}

// asIn chooses how files are hashed: as in the manifest. It does not read a file that is missing there or has another
// size: that differs anyway.
func asIn(want []format.Entry) func(string, *unix.Stat_t) form {
	return func(path string, st *unix.Stat_t) form {
		i, found := slices.BinarySearchFunc(want, path, func(e format.Entry, p string) int {
			switch {
			case e.Path == p:
				return 0
			case format.Less(e.Path, p):
				return -1
			}
			return 1
		})
		switch {
		case !found || want[i].Type != format.File || want[i].Size != st.Size:
			return nothing
		case want[i].Sparse:
			return blocks
		}
		return whole
	}
}

// VerifyDigest is Verify, and the manifest itself must have the digest that Finalize
// gave.
func (s *Store) VerifyDigest(ctx context.Context, id timeline.LayerID, digest string) error {
	_, have, err := s.Manifest(ctx, id)
	if err != nil {
		return err
	}
	if have != digest {
		return fault.New(fault.Corrupt, "verify layer %s: manifest has digest %s, recorded is %s", id, have, digest)
	}
	return s.Verify(ctx, id)
}

// compare finds the first path in which two layers differ.
func compare(want, got []format.Entry) error {
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got) || i < len(want) && format.Less(want[i].Path, got[i].Path):
			return fault.New(fault.Corrupt, "%q is missing", "/"+want[i].Path)
		case i >= len(want) || format.Less(got[i].Path, want[i].Path):
			return fault.New(fault.Corrupt, "%q is not in the manifest", "/"+got[i].Path)
		}
		if what := differs(&want[i], &got[i]); what != "" {
			return fault.New(fault.Corrupt, "%q differs from its manifest: %s", "/"+want[i].Path, what)
		}
	}
	return nil
}

func differs(a, b *format.Entry) string {
	switch {
	case a.Type != b.Type:
		return "type"
	case a.Mode != b.Mode:
		return "mode"
	case a.UID != b.UID || a.GID != b.GID:
		return "owner"
	case a.Size != b.Size:
		return "size"
	case a.Sum != b.Sum:
		return "content"
	case a.Link != b.Link:
		return "link target"
	case a.Major != b.Major || a.Minor != b.Minor:
		return "device number"
	case a.Mtime != b.Mtime:
		return "modification time"
	case len(a.Xattrs) != len(b.Xattrs):
		return "set of attributes"
	}
	for i := range a.Xattrs {
		if a.Xattrs[i] != b.Xattrs[i] {
			return "attribute " + a.Xattrs[i].Key
		}
	}
	return ""
}
