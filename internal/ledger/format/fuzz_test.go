package format

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// FuzzParse checks that a line that can be read is the only line of its record.
func FuzzParse(f *testing.F) {
	for _, k := range Kinds() {
		line, err := Encode(&Record{Body: newBody(k), Sandbox: Host, Seq: 1, Observer: BySandbox})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"body":{"args":null}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := Parse(line)
		if err != nil {
			return
		}
		again, err := Encode(r)
		if err != nil || !bytes.Equal(again, line) {
			t.Errorf("%q is written %q, %v", line, again, err)
		}
	})
}

// FuzzParseGrowth checks that a request to a witness that can be read is its only text.
func FuzzParseGrowth(f *testing.F) {
	checkpoint := []byte("o\n1\n" + strings.Repeat("A", 43) + "=\n\n— o AAAA\n")
	f.Add(Growth{Checkpoint: checkpoint}.Text())
	f.Add(Growth{Old: 7, Proof: make([]Hash, 3), Checkpoint: checkpoint}.Text())
	f.Add([]byte("old -1\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseGrowth(b)
		if err == nil && (g.Old < 0 || len(g.Proof) > maxProof || !bytes.Equal(g.Text(), b)) {
			t.Errorf("%q is written %q", b, g.Text())
		}
	})
}

// FuzzVerifyBundle checks that no bundle makes the reader fail other than with an error.
func FuzzVerifyBundle(f *testing.F) {
	golden, err := os.ReadFile("../testdata/bundle.tar")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(golden[:block])
	f.Add(append(tarHeader(FileManifest, maxFile), make([]byte, 2*block)...))
	f.Add(append(tarHeader("../../etc/passwd", 0), make([]byte, 2*block)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := VerifyBundle(context.Background(), bytes.NewReader(b), int64(len(b)), Demands{})
		if (v == nil) == (err == nil) {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

// TestCover_YieldsRoot checks that the proof of any leaves of any tree yields its root, and
// only with all of its hashes.
func TestCover_YieldsRoot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(0, 300).Draw(t, "size")
		var tree Tree
		var stored, leaves []Hash
		for i := range size {
			h := HashLine([]byte{byte(i), byte(i >> 8)})
			leaves = append(leaves, h)
			stored = append(stored, tree.Add(h)...)
		}
		var edge []Hash
		for _, at := range EdgeIndexes(size) {
			edge = append(edge, stored[at])
		}
		if again := NewTree(size, edge); again.Root() != tree.Root() {
			t.Error("another root by the edge")
		}
		var mine []int64
		for i := range size {
			if rapid.Bool().Draw(t, "mine") {
				mine = append(mine, i)
			}
		}
		cover := Cover(size, mine)
		root, err := CoverRoot(size, func() (*Leaf, error) {
			if len(mine) == 0 {
				return nil, nil
			}
			at := mine[0]
			mine = mine[1:]
			return &Leaf{at, leaves[at]}, nil
		}, func(at int64) (Hash, error) {
			if cover[0] != at {
				t.Errorf("asked for %d, not %d", at, cover[0])
			}
			cover = cover[1:]
			return stored[at], nil
		})
		if err != nil || root != tree.Root() || len(cover) > 0 {
			t.Errorf("%v, %v, %d left", root, err, len(cover))
		}
	})
}

func BenchmarkParse(b *testing.B) {
	line, err := Encode(
		&Record{Body: &Exec{Exec: "1", Args: []string{"make", "-j2", "target"}, Env: []string{"HOME", "PATH"}},
			Sandbox: "00000000000a", Seq: 1, Observer: ByKeeper, Policy: "sha256:00", Tier: "process"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Parse(line); err != nil {
			b.Fatal(err)
		}
	}
}
