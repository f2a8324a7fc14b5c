//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestStoresOfJava(t *testing.T) {
	t.Parallel()
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	empty = append(empty, jksSum(empty)...)
	one := withJKS(empty, []byte("first"))
	two := withJKS(one, []byte("second"))
	if binary.BigEndian.Uint32(two[8:]) != 2 || !bytes.HasPrefix(two[jksHeader:], one[jksHeader:len(one)-20]) || !bytes.Contains(two, []byte("\x00\x00\x00\x06second")) {
		t.Errorf("%q", two)
	}
	if got := withJKS(two, []byte("first")); !bytes.Equal(got, two) {
		t.Errorf("it is there twice: %q", got)
	}
	other := bytes.Clone(one)
	other[len(other)-1]++
	many := append([]byte(jksMagic), 255, 255, 255, 255)
	many = append(many, jksSum(many)...)
	for what, b := range map[string][]byte{"nothing": nil, "a part": one[:20], "another password": other, "PKCS12": append([]byte{0x30, 0x82}, one...), "many": many} {
		if got := withJKS(b, []byte("x")); got != nil {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// keytool gives a directory, and what runs keytool there and gives what it printed.
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

// Java takes what is made for one of its own.
func TestJavaReadsItsStore(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	run("-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-keystore", "a.p12", "-storepass", "changeit", "-storetype", "PKCS12")
	run("-exportcert", "-alias", "a", "-keystore", "a.p12", "-storepass", "changeit", "-file", "a.der")
	der, err := os.ReadFile(filepath.Join(dir, "a.der"))
	if err != nil {
		t.Fatal(err)
	}
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	if err := os.WriteFile(filepath.Join(dir, "cacerts"), withJKS(append(empty, jksSum(empty)...), der), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := run("-list", "-keystore", "cacerts", "-storepass", "changeit"); !strings.Contains(out, jksAlias+", ") || !strings.Contains(out, "trustedCertEntry") {
		t.Error(out)
	}
}

// A store without a password, as JDKs bring it, has one more that Java trusts; one with a
// password stays what it is.
func TestJavaReadsItsOtherStore(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	for _, name := range []string{"a", "b"} {
		run("-genkeypair", "-alias", name, "-keyalg", "EC", "-dname", "CN="+name, "-keystore", name+".p12", "-storepass", "changeit", "-storetype", "PKCS12")
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
	importing := []string{"-importcert", "-noprompt", "-alias", "first", "-file", "a.der", "-storepass", "changeit", "-storetype", "PKCS12"}
	run(append(importing, "-keystore", "locked")...)
	run(append(importing, "-keystore", "open", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE")...)
	if got := withPKCS12(read("locked"), read("b.der")); got != nil {
		t.Error("a store with a password was added to")
	}
	both := withPKCS12(read("open"), read("b.der"))
	if err := os.WriteFile(filepath.Join(dir, "cacerts"), both, 0o644); err != nil {
		t.Fatal(err)
	}
	out := run("-list", "-keystore", "cacerts", "-storepass", "changeit", "-storetype", "PKCS12")
	if strings.Count(out, "trustedCertEntry") != 2 || !strings.Contains(out, jksAlias+", ") || !strings.Contains(out, "first, ") {
		t.Error(out)
	}
	if again := withPKCS12(both, read("b.der")); !bytes.Equal(again, both) {
		t.Error("it is there twice")
	}
	for n := range len(both) {
		if withPKCS12(both[:n], []byte("x")) != nil {
			t.Errorf("%d of %d bytes were taken for a store", n, len(both))
		}
	}
}

// Every user can read the copy of a store, so one with a private key is not copied.
func TestJavaStores_WithAPrivateKeyAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir, run := keytool(t)
	pair := []string{"-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=a", "-storepass", "changeit"}
	run(append(pair, "-storetype", "JKS", "-keypass", "changeit", "-keystore", "jks")...)
	run(append(pair, "-storetype", "PKCS12", "-keystore", "p12", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE")...)
	for name, with := range map[string]func(have, der []byte) []byte{"jks": withJKS, "p12": withPKCS12} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if with(have, []byte("x")) != nil {
			t.Errorf("%s: a store with a private key was copied", name)
		}
	}
}

func FuzzStoresOfJava(f *testing.F) {
	empty := append([]byte(jksMagic), 0, 0, 0, 0)
	f.Add(append(empty, jksSum(empty)...))
	f.Add([]byte("\x30\x16\x02\x01\x03\x30\x11\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x01\xa0\x04\x04\x02\x30\x00"))
	f.Fuzz(func(t *testing.T, have []byte) {
		der := []byte("\x30\x05authority")
		for _, with := range []func(a, b []byte) []byte{withJKS, withPKCS12} {
			if all := with(have, der); all != nil && (!bytes.Contains(all, der) || !bytes.Equal(with(all, der), all)) {
				t.Errorf("%q became %q", have, all)
			}
		}
	})
}
