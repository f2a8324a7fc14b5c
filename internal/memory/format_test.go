package memory

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

// someManifest draws a manifest in canonical form.
func someManifest(t *rapid.T) *manifest {
	m := &manifest{facts: rapid.MapOfN(rapid.StringN(0, 20, 40), rapid.StringN(0, 20, 40), 0, 4).Draw(t, "facts")}
	for i := range m.small {
		m.small[i].size = rapid.Int64Range(0, maxSmall).Draw(t, "size")
		copy(m.small[i].sum[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "sum"))
	}
	for range rapid.IntRange(0, 40).Draw(t, "runs") {
		r := run{pack: uint32(rapid.IntRange(0, len(m.packs)+1).Draw(t, "pack")),
			count: uint32(rapid.IntRange(1, 1000).Draw(t, "count"))}
		if r.pack > uint32(len(m.packs)) {
			m.packs = append(m.packs, digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "id")))
		}
		if r.pack > 0 {
			r.first = uint32(rapid.IntRange(0, maxPages-1000).Draw(t, "first"))
		}
		m.add(r)
	}
	return m
}

func TestManifest_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := someManifest(t)
		b, id, err := m.encode()
		must(t, err)
		got, err := decodeManifest(b)
		must(t, err)
		if !reflect.DeepEqual(got.runs, append([]run{}, m.runs...)) || !slices.Equal(got.packs, m.packs) ||
			got.small != m.small || !reflect.DeepEqual(got.facts, m.facts) {
			t.Fatalf("%+v\n%+v", got, m)
		}
		if _, ok := parseID(string(id)); !ok {
			t.Fatalf("%q", id)
		}
		for _, other := range [][]byte{b[:len(b)-1], append(slices.Clone(b), 0), b[1:]} {
			if _, err := decodeManifest(other); !fault.Is(err, fault.Corrupt) {
				t.Fatalf("%v", err)
			}
		}
	})
}

// TestManifest_IsSmall checks that the second checkpoint of an idle process has a small manifest, also if every other
// page has moved.
func TestManifest_IsSmall(t *testing.T) {
	t.Parallel()
	var m manifest
	m.packs = make([]digest, 2)
	for i := range uint32(128000) {
		m.add(run{1 + i%2, i / 2 * 3, 1})
	}
	b, _, err := m.encode()
	must(t, err)
	if len(b) > 512<<10 {
		t.Errorf("%d bytes", len(b))
	}
}

func TestDecode_RefusesLaterVersion(t *testing.T) {
	t.Parallel()
	b, _, err := (&manifest{}).encode()
	must(t, err)
	b[15] = '2'
	if _, err := decodeManifest(b); !fault.Is(err, fault.Version) || fault.HintOf(err) == "" {
		t.Error(err)
	}
	b, id := encodeIndex(header{pages: 1}, make([]digest, 1))
	_, err = decodeIndex(b, id)
	must(t, err)
	b[15] = '2'
	if _, err := decodeIndex(b, id); !fault.Is(err, fault.Version) {
		t.Error(err)
	}
}

// FuzzManifest checks that decoding any bytes does not panic, and that what is accepted is canonical and within its
// bounds.
func FuzzManifest(f *testing.F) {
	for _, m := range []*manifest{
		{},
		{facts: Facts{"gvisor": "x"}, packs: make([]digest, 2), runs: []run{{0, 0, 3}, {1, 5, 2}, {2, 0, 1}, {1, 7, 1}}},
		{packs: make([]digest, 1), runs: []run{{1, maxPages - 1, 1}}},
		{runs: []run{{0, 0, maxPages}}},
	} {
		b, _, err := m.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, 0))
	}
	huge := append([]byte(manifestMagic), 2, '{', '}')
	huge = append(append(huge, make([]byte, 33)...), make([]byte, 33)...)
	f.Add(binary.AppendUvarint(huge, 1<<60))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.Version) {
				t.Fatal(err)
			}
			return
		}
		again, _, err := m.encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%v: an encoding that is not canonical was accepted", err)
		}
		if all, _ := m.pages(); all > maxPages {
			t.Fatalf("%d pages", all)
		}
		for _, r := range m.runs {
			if r.count == 0 || int(r.pack) > len(m.packs) || uint64(r.first)+uint64(r.count) > maxPages {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	b, _ := encodeIndex(header{pages: 3, made: 5}, make([]digest, 3))
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err == nil && (h.pages == 0 || h.pages > maxPages) {
			t.Fatalf("%+v", h)
		}
		if _, err := decodeIndex(b, digest{}); err == nil {
			t.Fatal("an index that does not match its digest was accepted")
		}
	})
}

// TestManifest_PartsCoverImage checks that runs are the same however the pages are split, and that parts cover them
// in order.
func TestManifest_PartsCoverImage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := someManifest(t)
		var flat []run
		at := int64(0)
		for _, r := range m.runs {
			for i := range r.count {
				if r.pack > 0 {
					flat = append(flat, run{r.pack, r.first + i, uint32(at)})
				}
				at++
			}
		}
		for _, p := range m.parts() {
			n := uint32(0)
			for _, r := range p.runs {
				for i := range r.count {
					if len(flat) == 0 || flat[0] != (run{r.pack, r.first + i, uint32(p.at) + n}) {
						t.Fatalf("%+v, want %+v", p, flat[:min(1, len(flat))])
					}
					flat = flat[1:]
					n++
				}
			}
			if n == 0 || n > chunk {
				t.Fatalf("a part has %d pages", n)
			}
		}
		if len(flat) > 0 {
			t.Fatalf("%d pages are in no part", len(flat))
		}
	})
}
