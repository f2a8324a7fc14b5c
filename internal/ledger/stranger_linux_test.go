package ledger_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
)

var update = flag.Bool("update", false, "write the golden bundle anew: never, unless the version of bundles changes")

const (
	box   format.Sandbox = "0123456789ab"
	other format.Sandbox = "ba9876543210"
)

// made returns a bundle, and the first key of its log.
func made(t testing.TB, records int) (bundle []byte, key string) {
	t.Helper()
	ctx := context.Background()
	l, _, err := ledger.Open(t.TempDir(), ledger.Options{SegmentBytes: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name, err := l.WriteBlob(box, []byte("hello, stranger\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if i == records/2 {
			if err := l.RotateKey(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for range i % 3 {
			if _, err := l.Append(ctx,
				ledger.Draft{Sandbox: other, Observer: format.ByDaemon, Body: &format.Stop{}}); err != nil {
				t.Fatal(err)
			}
		}
		body := format.Body(&format.Exec{Exec: fmt.Sprint(i), Args: []string{"echo", "hello, \"stranger\" <&> \u2028"}})
		if i%2 == 1 {
			body = &format.Exit{Exec: fmt.Sprint(i - 1), Output: []format.Output{{Stream: "stdout", Blob: name, Bytes: 16}}}
		}
		if _, err := l.Append(ctx,
			ledger.Draft{Sandbox: box, Name: "web", Observer: format.ByKeeper, Tier: "process", Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := l.Export(ctx, box, &b, 1); err != nil {
		t.Fatal(err)
	}
	keys, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), keys[0].Key
}

func ours(b []byte, key string) error {
	_, err := format.VerifyBundle(context.Background(), bytes.NewReader(b), int64(len(b)),
		format.Demands{Keys: []string{key}})
	return err
}

// both fails unless both verifiers refuse a bundle.
func both(t interface{ Errorf(string, ...any) }, b []byte, key, what string) {
	if _, err := stranger(b, key); err == nil {
		t.Errorf("the second verifier did not find: %s", what)
	}
	if ours(b, key) == nil {
		t.Errorf("Coppice's verifier did not find: %s", what)
	}
}

func TestSecondVerifier_SharesNoCode(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "stranger_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, im := range f.Imports {
		name := strings.Trim(im.Path.Value, `"`)
		if strings.Contains(name, ".") {
			t.Errorf("imports %s", name)
		}
		known[path.Base(name)] = true
	}
	for _, id := range f.Unresolved { // from an import, predeclared, or from another file
		if !known[id.Name] && types.Universe.Lookup(id.Name) == nil {
			t.Errorf("uses %s of another file", id.Name)
		}
	}
}

func TestSecondVerifier_AcceptsBundle(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 7, 20} {
		b, key := made(t, n)
		if got, err := stranger(b, key); err != nil || got != n {
			t.Errorf("%d records: %d, %v", n, got, err)
		}
		if err := ours(b, key); err != nil {
			t.Errorf("%d records: %v", n, err)
		}
	}
}

func TestBundle_DetectsAnyChangedByte(t *testing.T) {
	t.Parallel()
	b, key := made(t, 4)
	first, step := looptest.Sample(t, 7)
	for i := first; i < len(b); i += step {
		changed := bytes.Clone(b)
		changed[i] ^= 1 << (i % 8)
		both(t, changed, key, fmt.Sprintf("byte %d of %d", i, len(b)))
	}
	rapid.Check(t, func(t *rapid.T) {
		changed := bytes.Clone(b)
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		changed[i] += byte(rapid.IntRange(1, 255).Draw(t, "by"))
		both(t, changed, key, fmt.Sprintf("byte %d", i))
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		both(t, b[:cut], key, "cut off")
		both(t, append(bytes.Clone(b), b[:cut+1]...), key, "longer")
	})
}

// forge returns a bundle with other records, whose manifest is made to fit and is signed by a key of the forger: all
// that an attacker without the log's key can do.
func forge(t *rapid.T, b []byte, change func(lines []string) []string, rekey bool) []byte {
	manifest, rest, err := untar(b, "manifest", -1)
	if err != nil {
		t.Fatal(err)
	}
	text, sig, _ := strings.Cut(string(manifest), "\n\n")
	m, err := format.ParseManifest(text + "\n")
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for i, f := range m.Files {
		if content[f.Name], rest, err = untar(rest, f.Name, f.Bytes); err != nil {
			t.Fatal(err)
		}
		if f.Name == format.FileRecords {
			lines := strings.SplitAfter(string(content[f.Name]), "\n")
			lines = change(lines[:len(lines)-1])
			content[f.Name] = []byte(strings.Join(lines, ""))
			m.Records = int64(len(lines))
			m.Head = format.Hash{}
			if len(lines) > 0 {
				m.Head = format.HashLine([]byte(strings.TrimSuffix(lines[len(lines)-1], "\n")))
			}
			m.Files[i].Bytes, m.Files[i].Sum = int64(len(content[f.Name])), sum(content[f.Name])
		}
	}
	signed := []byte(m.Text() + "\n" + sig)
	if rekey {
		skey, vkey, err := note.GenerateKey(nil, m.Origin)
		if err != nil {
			t.Fatal(err)
		}
		signer, _ := note.NewSigner(skey)
		c, _ := format.ParseCheckpoint(strings.SplitAfter(string(content["checkpoint"]), "\n\n")[0])
		content["checkpoint"], _ = format.Sign(c.Text(), signer)
		if rapid.Bool().Draw(t, "own keys") {
			content["keys"] = []byte(vkey + "\n")
		}
		for i, f := range m.Files {
			m.Files[i].Bytes, m.Files[i].Sum = int64(len(content[f.Name])), sum(content[f.Name])
		}
		signed, _ = format.Sign(m.Text(), signer)
	}
	var out bytes.Buffer
	format.WriteFile(&out, "manifest", int64(len(signed)), bytes.NewReader(signed))
	for _, f := range m.Files {
		format.WriteFile(&out, f.Name, int64(len(content[f.Name])), bytes.NewReader(content[f.Name]))
	}
	format.WriteEnd(&out)
	return out.Bytes()
}

func sum(b []byte) format.Hash {
	h, _ := format.ParseHash(sumHex(b))
	return h
}

func TestBundle_DetectsTampering(t *testing.T) {
	t.Parallel()
	b, key := made(t, 12)
	rapid.Check(t, func(t *rapid.T) {
		how := rapid.SampledFrom([]string{"drop", "double", "swap", "rewrite", "truncate", "none"}).Draw(t, "how")
		rekey := how == "none" || rapid.Bool().Draw(t, "reseal")
		forged := forge(t, b, func(lines []string) []string {
			i := rapid.IntRange(0, len(lines)-1).Draw(t, "i")
			j := rapid.IntRange(0, len(lines)-2).Draw(t, "j")
			switch how {
			case "drop":
				return append(append([]string{}, lines[:i]...), lines[i+1:]...)
			case "double":
				return append(append(append([]string{}, lines[:i+1]...), lines[i]), lines[i+1:]...)
			case "swap":
				if j >= i {
					j++
				}
				lines[i], lines[j] = lines[j], lines[i]
			case "truncate":
				return lines[:i]
			case "rewrite":
				return rechain(t, lines, i, rapid.Bool().Draw(t, "drop it"))
			}
			return lines
		}, rekey)
		both(t, forged, key, how)
	})
}

// rechain changes or drops a record, and makes all later ones fit.
func rechain(t *rapid.T, lines []string, i int, drop bool) []string {
	var out []string
	prev := format.Hash{}
	for n, line := range lines {
		r, err := format.Parse([]byte(strings.TrimSuffix(line, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		if n == i && drop {
			continue
		}
		if n == i {
			r.Name = "another"
		}
		r.Seq, r.Prev = int64(len(out)+1), prev
		again, err := format.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		prev = format.HashLine(again)
		out = append(out, string(again)+"\n")
	}
	return out
}

// TestBundle_GoldenFileVerifies matters because an exported bundle must be verifiable for ever.
func TestBundle_GoldenFileVerifies(t *testing.T) {
	t.Parallel()
	file := filepath.Join("testdata", "bundle.tar")
	if *update {
		b, key := made(t, 9)
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".key", []byte(key+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	k, err := os.ReadFile(file + ".key")
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(k))
	if n, err := stranger(b, key); err != nil || n != 9 {
		t.Errorf("second verifier: %d, %v", n, err)
	}
	if err := ours(b, key); err != nil {
		t.Errorf("Coppice's verifier: %v", err)
	}
}

// FuzzSecondVerifierAgrees checks that the verifier of Coppice accepts whatever the second, independent verifier
// accepts.
func FuzzSecondVerifierAgrees(f *testing.F) {
	b, key := made(f, 3)
	f.Add(b)
	f.Add(b[:512])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, theirs := stranger(b, key)
		if own := ours(b, key); (own == nil) != (theirs == nil) && theirs == nil {
			t.Errorf("the second verifier accepts what Coppice's refuses: %v", own)
		}
	})
}
