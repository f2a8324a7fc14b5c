package javastore

import (
	"bytes"
	"crypto/sha1"
	"encoding/asn1"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestAdd_ExtendsJKS(t *testing.T) {
	t.Parallel()
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	empty = append(empty, jksSum(empty)...)
	one := Add(empty, []byte("first"))
	two := Add(one, []byte("second"))
	if binary.BigEndian.Uint32(two[8:]) != 2 || !bytes.HasPrefix(two[jksHeader:], one[jksHeader:len(one)-20]) ||
		!bytes.Contains(two, []byte("\x00\x00\x00\x06second")) {
		t.Errorf("%q", two)
	}
	if got := Add(two, []byte("first")); !bytes.Equal(got, two) {
		t.Errorf("the certificate was added twice: %q", got)
	}
	other := bytes.Clone(one)
	other[len(other)-1]++
	many := append([]byte(jksMagic), 255, 255, 255, 255)
	many = append(many, jksSum(many)...)
	for what, b := range map[string][]byte{"nothing": nil, "a part": one[:20], "another password": other,
		"PKCS12": append([]byte{0x30, 0x82}, one...), "many": many} {
		if got := Add(b, []byte("x")); got != nil {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// keytool returns a directory, and a function that runs keytool there and returns its output.
func keytool(t *testing.T) (dir string, run func(args ...string) string) {
	t.Helper()
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("needs keytool: " + err.Error())
	}
	dir = t.TempDir()
	return dir, func(args ...string) string {
		t.Helper()
		cmd := exec.Command("keytool", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
}

// TestAdd_KeytoolReadsJKS checks that Java reads a store to which Add has added a certificate.
func TestAdd_KeytoolReadsJKS(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	run("-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-keystore", "a.p12", "-storepass", "changeit",
		"-storetype", "PKCS12")
	run("-exportcert", "-alias", "a", "-keystore", "a.p12", "-storepass", "changeit", "-file", "a.der")
	der, err := os.ReadFile(filepath.Join(dir, "a.der"))
	if err != nil {
		t.Fatal(err)
	}
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	if err := os.WriteFile(filepath.Join(dir, "cacerts"), Add(append(empty, jksSum(empty)...), der), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := run("-list", "-keystore", "cacerts", "-storepass", "changeit"); !strings.Contains(out, alias+", ") ||
		!strings.Contains(out, "trustedCertEntry") {
		t.Error(out)
	}
}

// TestAdd_KeytoolReadsPKCS12 checks that Java trusts the certificate that Add adds to a store without a password,
// as shipped with JDKs, and that a store with a password is unchanged.
func TestAdd_KeytoolReadsPKCS12(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	for _, name := range []string{"a", "b"} {
		run("-genkeypair", "-alias", name, "-keyalg", "EC", "-dname", "CN="+name, "-keystore", name+".p12", "-storepass",
			"changeit", "-storetype", "PKCS12")
		run("-exportcert", "-alias", name, "-keystore", name+".p12", "-storepass", "changeit", "-file", name+".der")
	}
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	importing := []string{"-importcert", "-noprompt", "-alias", "first", "-file", "a.der", "-storepass", "changeit",
		"-storetype", "PKCS12"}
	run(append(importing, "-keystore", "locked")...)
	run(append(importing, "-keystore", "open", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE",
		"-J-Dkeystore.pkcs12.macAlgorithm=NONE")...)
	if got := Add(read("locked"), read("b.der")); got != nil {
		t.Error("a store with a password was changed")
	}
	both := Add(read("open"), read("b.der"))
	if err := os.WriteFile(filepath.Join(dir, "cacerts"), both, 0o644); err != nil {
		t.Fatal(err)
	}
	out := run("-list", "-keystore", "cacerts", "-storepass", "changeit", "-storetype", "PKCS12")
	if strings.Count(out, "trustedCertEntry") != 2 || !strings.Contains(out, alias+", ") ||
		!strings.Contains(out, "first, ") {
		t.Error(out)
	}
	if again := Add(both, read("b.der")); !bytes.Equal(again, both) {
		t.Error("the certificate was added twice")
	}
	for n := range len(both) {
		if Add(both[:n], []byte("x")) != nil {
			t.Errorf("%d of %d bytes were accepted as a store", n, len(both))
		}
	}
}

// TestAdd_SkipsStoreWithPrivateKey checks that a store with a private key is not copied, because every user can
// read the copy.
func TestAdd_SkipsStoreWithPrivateKey(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	pair := []string{"-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-storepass", "changeit"}
	run(append(pair, "-storetype", "JKS", "-keypass", "changeit", "-keystore", "jks")...)
	run(append(pair, "-storetype", "PKCS12", "-keystore", "p12", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE",
		"-J-Dkeystore.pkcs12.macAlgorithm=NONE")...)
	for _, name := range []string{"jks", "p12"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if Add(have, []byte("x")) != nil {
			t.Errorf("%s: a store with a private key was copied", name)
		}
	}
}

func FuzzAddToStore(f *testing.F) {
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	f.Add(append(empty, jksSum(empty)...))
	f.Add([]byte("\x30\x16\x02\x01\x03\x30\x11\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01\xa0\x04\x04\x02\x30\x00"))
	f.Fuzz(func(t *testing.T, have []byte) {
		der := []byte("\x30\x05authority")
		if all := Add(have, der); all != nil && (!bytes.Contains(all, der) || !bytes.Equal(Add(all, der), all)) {
			t.Errorf("%q became %q", have, all)
		}
	})
}

// TestAdd_UsesMemoryLinearInStore covers a short store that claims a large content, and a long one with very
// small parts. Add runs outside the sandbox, where the sandbox's memory limit does not apply.
func TestAdd_UsesMemoryLinearInStore(t *testing.T) {
	const size = 1 << 20
	many := bytes.Repeat([]byte{asn1.TagNull, 0}, size/2)
	sequence := func(b []byte) []byte {
		return marshal(t, asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: b})
	}
	of := func(safe []byte) []byte {
		return marshal(t, struct {
			Version int
			Safe    contentInfo
		}{3, contentInfo{oidData, safe}})
	}
	for name, store := range map[string][]byte{
		"a JKS of 4 GiB entries": append(append([]byte(jksMagic), 0xff, 0xff, 0xff, 0xfe), make([]byte, 32)...),
		"a JKS certificate of 4 GiB": append([]byte(jksMagic),
			"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x05X.509\xff\xff\xff\xffxxxxxxxxxxxxxxxxxxxx"...),
		"a JKS key with 4 GiB others": append([]byte(jksMagic),
			"\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xffxxxxxxxxxxxxxxxxxxxx"...),
		"PKCS #12 of very small parts": of(sequence(many)),
		"a part of very small bags":    of(sequence(marshal(t, contentInfo{oidData, sequence(many)}))),
		"a very long type": of(
			sequence(append([]byte{asn1.TagOID, 0x83, size >> 16, 0, 0}, make([]byte, size)...))),
	} {
		if binary.BigEndian.Uint32(store) == 0xfeedfeed {
			body := store[:len(store)-sha1.Size]
			copy(store[len(body):], jksSum(body))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if Add(store, []byte("x")) != nil {
			t.Errorf("%s is accepted as a store", name)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 12*size {
			t.Errorf("%s of %d bytes: %d bytes were allocated", name, len(store), used)
		}
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := asn1.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
