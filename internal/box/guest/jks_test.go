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

// Java takes what is made for one of its own.
func TestJavaReadsItsStore(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("needs keytool: " + err.Error())
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("keytool", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
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
