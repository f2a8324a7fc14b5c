package timeline

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestNewID_ParsesBack(t *testing.T) {
	t.Parallel()
	random := bytes.NewReader(
		[]byte{0, 1, 2, 0xfd, 0xfe, 0xff, 0, 1, 2, 3, 4, 5, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0, 1})
	box, err := NewSandboxID(random)
	if err != nil || box != "000102fdfeff" {
		t.Errorf("sandbox: %q, %v", box, err)
	}
	snap, err := NewSnapshotID(random)
	if err != nil || snap != "000102030405" {
		t.Errorf("snapshot: %q, %v", snap, err)
	}
	layer, err := NewLayerID(random)
	if err != nil || layer != "aabbccddeeff0001" {
		t.Errorf("layer: %q, %v", layer, err)
	}
	if _, err := NewLayerID(random); !errors.Is(err, io.EOF) {
		t.Errorf("without random bytes: %v, want EOF", err)
	}
	if got, err := ParseSandboxID(string(box)); got != box || err != nil {
		t.Errorf("ParseSandboxID: %q, %v", got, err)
	}
	if got, err := ParseSnapshotID(string(snap)); got != snap || err != nil {
		t.Errorf("ParseSnapshotID: %q, %v", got, err)
	}
	if got, err := ParseLayerID(string(layer)); got != layer || err != nil {
		t.Errorf("ParseLayerID: %q, %v", got, err)
	}
}

func TestParseID_IsStrict(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "0", "00010203040", "0001020304050", "00010203040G", "00010203040A", " 0010203040f", "../../../../x",
		"aabbccddeeff000", "aabbccddeeff00011", "AABBCCDDEEFF0001", "aabbccddeeff000\n",
	} {
		if got, err := ParseSnapshotID(in); got != "" || !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseSnapshotID(%q) = %q, %v", in, got, err)
		}
		if got, err := ParseSandboxID(in); got != "" || !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseSandboxID(%q) = %q, %v", in, got, err)
		}
		if got, err := ParseLayerID(in); got != "" || !fault.Is(err, fault.Invalid) {
			t.Errorf("ParseLayerID(%q) = %q, %v", in, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", MaxName)
	for _, c := range []struct {
		name     string
		box, tag bool
	}{
		{"a", true, true}, {"0", true, true}, {"web-1", true, true}, {"a.b_c-d", true, true}, {long, true, true},
		{"beef", true, true}, {"00010203040", true, true},
		{"head", true, false}, {"000102030405", false, false},
		{"", false, false}, {long + "a", false, false}, {"-a", false, false}, {".a", false, false}, {"_a", false, false},
		{"A", false, false}, {"HEAD", false, false}, {"a/b", false, false}, {"a b", false, false}, {"a@b", false, false},
		{"a~1", false, false}, {"é", false, false}, {"a\n", false, false}, {"a\x00", false, false}, {"@", false, false},
	} {
		if err := ValidName(c.name); (err == nil) != c.box || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("ValidName(%q) = %v", c.name, err)
		}
		if err := ValidTag(c.name); (err == nil) != c.tag || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("ValidTag(%q) = %v", c.name, err)
		}
	}
}

func TestValidTag_Resolves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.StringMatching(`[a-z0-9][a-z0-9_.-]{0,62}`).Draw(t, "tag")
		if ValidTag(tag) != nil {
			t.Skip("refused")
		}
		h := History{Snapshots: map[SnapshotID]Snapshot{"000000000001": {ID: "000000000001"}},
			Tags: map[string]SnapshotID{tag: "000000000001"}}
		if id, err := h.Resolve(tag, epoch); id != "000000000001" || err != nil {
			t.Fatalf("%q: %q, %v", tag, id, err)
		}
	})
}

func TestValidName_NamesTheCharacter(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"büx":    `'ü' is not allowed at position 2`,
		"web 1":  `' ' is not allowed at position 4`,
		"web-日本": `'日' is not allowed at position 5`,
		"a\xffb": `'�' is not allowed at position 2`,
	} {
		if err := ValidName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ValidName(%q) = %v, expected %s", name, err, want)
		}
	}
}
